"""Rounds of a deterministic run: the groups that are issued together, in batches."""

from collections.abc import Sequence

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.workers.batches import Seat, seats_of
from shoal.config import RunConfig


class Rounds:
    """The seats of the groups that are being sampled. Without `run.deterministic` no group has one."""

    def __init__(self, config: RunConfig, run_id: str, version: CurrentVersion) -> None:
        self._config = config
        self._run_id = run_id
        self._version = version
        self._seats: dict[tuple[int, bool], Seat] = {}

    def begin(self, order_numbers: Sequence[int]) -> None:
        """Gives the groups of a round their seats, and one more to the greedy sample of each, if it has one."""
        kinds = (False, True) if self._config.advantage.baseline == "greedy" else (False,)
        self._seats |= seats_of(
            [[(order_number, is_greedy) for is_greedy in kinds] for order_number in order_numbers],
            name=f"{self._run_id}/{self._version.weights.attempt}/round-{order_numbers[0]}",
            num_completions=self._config.grpo.group_size + len(kinds) - 1,
            config=self._config,
        )

    def seat(self, order_number: int, *, is_greedy: bool) -> Seat | None:
        """Returns the seat of a group, or of its greedy sample; None if it needs none."""
        return self._seats.get((order_number, is_greedy))

    def end(self, order_number: int) -> None:
        """Frees the seats of a group that is sampled, or dropped."""
        for is_greedy in (False, True):
            if (seat := self._seats.pop((order_number, is_greedy), None)) is not None:
                seat.leave()
