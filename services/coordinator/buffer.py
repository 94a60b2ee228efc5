"""The pacing buffer: which groups may be issued, and which are trained on next."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT")


class PacingBuffer(Generic[GroupT]):
    """Bounds staleness by holding back the issue of prompts (see `shoal.grpo.staleness` for the proof).

    Groups have order numbers in the sequence of their issue. A slot is charged by `admit`, and released by
    `release` once the generators hold the weights that came of the group. `take` hands out groups in order.

    Not thread-safe: to be used from one event loop.
    """

    def __init__(self, *, capacity: int, first_order_number: int, last_order_number: Callable[[], int]) -> None:
        """`last_order_number` says beyond which number the run will need no group, as far as it knows now."""
        self._capacity = capacity
        self._last_order_number = last_order_number
        self._next_to_admit = first_order_number
        self._next_to_take = first_order_number
        self._next_to_release = first_order_number
        self._settled: dict[int, GroupT] = {}
        self._changed = asyncio.Condition()

    @property
    def next_to_take(self) -> int:
        """The first order number that has not been taken."""
        return self._next_to_take

    @property
    def next_to_release(self) -> int:
        """The first order number whose slot is still charged, or would be."""
        return self._next_to_release

    @property
    def num_charged(self) -> int:
        """Slots that are not free."""
        return self._next_to_admit - self._next_to_release

    def waiting_for(self, count: int) -> Sequence[int]:
        """The order numbers among the next `count` to take that have not settled."""
        return [n for n in range(self._next_to_take, self._next_to_take + count) if n not in self._settled]

    async def admit(self) -> int:
        """Waits for a free slot, charges it, and returns the order number that goes with it."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.num_charged < self._capacity and self._next_to_admit <= self._last_order_number()
            )
            order_number = self._next_to_admit
            self._next_to_admit += 1
            return order_number

    async def settle(self, order_number: int, group: GroupT) -> None:
        """Says what became of an admitted group."""
        async with self._changed:
            assert self._next_to_take <= order_number < self._next_to_admit and order_number not in self._settled
            self._settled[order_number] = group
            self._changed.notify_all()

    async def take(self, count: int) -> list[GroupT]:
        """Waits until the next `count` groups in order have settled, and returns them."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.waiting_for(count))
            first = self._next_to_take
            self._next_to_take += count
            return [self._settled.pop(n) for n in range(first, first + count)]

    async def release(self) -> None:
        """Frees the slots of all groups that were taken."""
        async with self._changed:
            self._next_to_release = self._next_to_take
            self._changed.notify_all()
