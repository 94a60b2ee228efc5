"""The pacing buffer, which decides when groups are issued and which are trained on next."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT")


class PacingBuffer(Generic[GroupT]):
    """Bounds staleness by delaying the issue of prompts (see `shoal.grpo.staleness` for the proof).

    Groups are numbered in the order of issue. `admit` charges a slot for a group; `release` frees the slot once the
    generators have loaded the weights that were trained on the group. `take` returns the next step's window: the groups
    in order, from the first group that has not been taken.

    The window has `groups_per_step` groups, and one more (up to `max_refills`) for each group in the window that
    settles without a signal: such a group frees its slot at once, for a replacement at the tail.

    Not thread-safe: use it from one event loop.
    """

    def __init__(
        self,
        *,
        capacity: int,
        groups_per_step: int,
        first_order_number: int,
        last_order_number: "Callable[[PacingBuffer[GroupT]], int]",
        max_refills: int = 0,
    ) -> None:
        """`last_order_number` returns the last group that the run needs, as far as is known at the call."""
        self._capacity = capacity
        self._groups_per_step = groups_per_step
        self._max_refills = max_refills
        self._last_order_number = last_order_number
        self._next_to_admit = first_order_number
        self.next_to_take = first_order_number
        """The first order number that is not taken."""
        self.next_to_release = first_order_number
        """The first order number that is not released."""
        self._num_refills = 0
        """Refills in the window that is being filled."""
        self._num_refills_taken = 0
        """Refills in the groups that are taken and not released."""
        self._settled: dict[int, tuple[GroupT, bool]] = {}
        self._changed = asyncio.Condition()

    @property
    def num_refills(self) -> int:
        """Number of groups without a signal whose slots were freed early."""
        return self._num_refills + self._num_refills_taken

    @property
    def num_charged(self) -> int:
        """Number of slots that are charged for groups."""
        return self._next_to_admit - self.next_to_release - self.num_refills

    @property
    def window_end(self) -> int:
        """The first order number after the present window of the next step."""
        return self.next_to_take + self._groups_per_step + self._num_refills

    @property
    def window_is_issued(self) -> bool:
        """Whether the first `groups_per_step` groups of the window are all issued, so that it will settle."""
        return self._next_to_admit >= self.next_to_take + self._groups_per_step

    def waiting_for(self) -> Sequence[int]:
        """Returns the order numbers in the next step's window that have not settled."""
        return [n for n in range(self.next_to_take, self.window_end) if n not in self._settled]

    async def admit(self) -> int:
        """Waits for a free slot, charges it, and returns the order number of its group."""
        async with self._changed:
            await self._changed.wait_for(self._may_admit)
            order_number = self._next_to_admit
            self._next_to_admit += 1
            return order_number

    async def admit_round(self) -> Sequence[int]:
        """Waits until every earlier group has settled, and then admits groups to all free slots; see `admit`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._all_have_settled and self._may_admit())
            first = self._next_to_admit
            while self._may_admit():
                self._next_to_admit += 1
            return range(first, self._next_to_admit)

    async def withdraw(self, order_number: int) -> None:
        """Cancels the admission of this group, of later groups, and of refills, since there is no prompt for them."""
        self._next_to_admit = order_number
        self._max_refills = 0
        self._refill()
        async with self._changed:
            self._changed.notify_all()

    def _may_admit(self) -> bool:
        return self.num_charged < self._capacity and self._next_to_admit <= self._last_order_number(self)

    @property
    def _all_have_settled(self) -> bool:
        return all(n in self._settled for n in range(self.next_to_take, self._next_to_admit))

    async def settle(self, order_number: int, group: GroupT, *, has_signal: bool = True) -> None:
        """Records the outcome of an admitted group."""
        assert self.next_to_take <= order_number < self._next_to_admit and order_number not in self._settled
        # Before the first wait: the configuration must not change between the verdict and this line.
        self._settled[order_number] = (group, has_signal)
        self._refill()
        async with self._changed:
            self._changed.notify_all()

    async def judge_again(self, judge: Callable[[GroupT], tuple[GroupT, bool]]) -> None:
        """Replaces the outcome of each settled group that is not taken.

        `judge` returns the new outcome, and whether the group has a signal. Groups whose slots were freed early keep
        their outcome, since the window already has refills for them. `admit` asks again for the last group of the run.
        """
        window = range(self.next_to_take, self.window_end)
        without = [number for number in window if number in self._settled and not self._settled[number][1]]
        replaced = set(without[: self._num_refills])
        self._settled.update({n: judge(group) for n, (group, _) in self._settled.items() if n not in replaced})
        self._refill()
        async with self._changed:
            self._changed.notify_all()

    async def window_settles(self) -> None:
        """Waits until the next step's window has settled."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.waiting_for())

    async def take(self) -> list[GroupT]:
        """Waits until the next step's window has settled, and returns its groups in order."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.waiting_for())
            first, end = self.next_to_take, self.window_end
            groups = [self._settled.pop(n)[0] for n in range(first, end)]
            self.next_to_take = end
            self._num_refills_taken += self._num_refills
            self._num_refills = 0
            self._refill()
            self._changed.notify_all()
            return groups

    async def release(self) -> None:
        """Frees the slots of all groups that are taken."""
        async with self._changed:
            self.next_to_release = self.next_to_take
            self._num_refills_taken = 0
            self._changed.notify_all()

    def _refill(self) -> None:
        """Widens the window by one group for each group in it that settled without a signal."""
        while True:
            window = range(self.next_to_take, self.window_end)
            num_without = sum(1 for n in window if n in self._settled and not self._settled[n][1])
            num_refills = min(num_without, self._max_refills)
            if num_refills == self._num_refills:
                return
            self._num_refills = num_refills
