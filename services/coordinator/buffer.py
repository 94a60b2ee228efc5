"""The pacing buffer: which groups may be issued, and which are trained on next."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT")


class PacingBuffer(Generic[GroupT]):
    """Bounds staleness by holding back the issue of prompts (see `shoal.grpo.staleness` for the proof).

    Groups have order numbers in the sequence of their issue. A slot is charged by `admit`, and released by
    `release` once the generators hold the weights that came of the group. `take` hands out the next step's window:
    the groups in order, from the first that has not been taken.

    The window is `groups_per_step` groups, and one more for each of them that settles without a signal, up to
    `max_refills` more: such a group gives its slot back at once, for a replacement at the tail.

    Not thread-safe: to be used from one event loop.
    """

    def __init__(
        self,
        *,
        capacity: int,
        groups_per_step: int,
        first_order_number: int,
        last_order_number: Callable[[], int],
        max_refills: int = 0,
    ) -> None:
        """`last_order_number` says beyond which number the run will need no group, as far as it knows now."""
        self._capacity = capacity
        self._groups_per_step = groups_per_step
        self._max_refills = max_refills
        self._last_order_number = last_order_number
        self._next_to_admit = first_order_number
        self._next_to_take = first_order_number
        self._next_to_release = first_order_number
        self._num_refills = 0
        """Of the window that is being filled."""
        self._num_refills_taken = 0
        """Of what is taken and not released."""
        self._settled: dict[int, tuple[GroupT, bool]] = {}
        self._changed = asyncio.Condition()

    @property
    def next_to_admit(self) -> int:
        """The first order number that has not been issued."""
        return self._next_to_admit

    @property
    def next_to_take(self) -> int:
        """The first order number that has not been taken."""
        return self._next_to_take

    @property
    def next_to_release(self) -> int:
        """The first order number whose slot is still charged, or would be."""
        return self._next_to_release

    @property
    def num_refills(self) -> int:
        """Slots that were given back ahead of their release."""
        return self._num_refills + self._num_refills_taken

    @property
    def num_charged(self) -> int:
        """Slots that are not free."""
        return self._next_to_admit - self._next_to_release - self.num_refills

    @property
    def window_end(self) -> int:
        """The first order number behind the next step's window, as it is now."""
        return self._next_to_take + self._groups_per_step + self._num_refills

    @property
    def window_is_issued(self) -> bool:
        """Whether the groups that the next step begins with are all on their way, so that it can be taken."""
        return self._next_to_admit >= self._next_to_take + self._groups_per_step

    def waiting_for(self) -> Sequence[int]:
        """The order numbers in the next step's window that have not settled."""
        return [n for n in range(self._next_to_take, self.window_end) if n not in self._settled]

    async def admit(self) -> int:
        """Waits for a free slot, charges it, and returns the order number that goes with it."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.num_charged < self._capacity and self._next_to_admit <= self._last_order_number()
            )
            order_number = self._next_to_admit
            self._next_to_admit += 1
            return order_number

    async def settle(self, order_number: int, group: GroupT, *, has_signal: bool = True) -> None:
        """Says what became of an admitted group."""
        async with self._changed:
            assert self._next_to_take <= order_number < self._next_to_admit and order_number not in self._settled
            self._settled[order_number] = (group, has_signal)
            self._refill()
            self._changed.notify_all()

    async def take(self) -> list[GroupT]:
        """Waits until the next step's window has settled, and returns its groups in order."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.waiting_for())
            first, end = self._next_to_take, self.window_end
            groups = [self._settled.pop(n)[0] for n in range(first, end)]
            self._next_to_take = end
            self._num_refills_taken += self._num_refills
            self._num_refills = 0
            self._refill()
            self._changed.notify_all()
            return groups

    async def release(self) -> None:
        """Frees the slots of all groups that were taken."""
        async with self._changed:
            self._next_to_release = self._next_to_take
            self._num_refills_taken = 0
            self._changed.notify_all()

    def _refill(self) -> None:
        """Widens the window by as many groups as settled in it without a signal; each widening may show more."""
        while True:
            window = range(self._next_to_take, self.window_end)
            num_without = sum(1 for n in window if n in self._settled and not self._settled[n][1])
            num_refills = min(num_without, self._max_refills)
            if num_refills == self._num_refills:
                return
            self._num_refills = num_refills
