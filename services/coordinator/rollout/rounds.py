"""The rounds of a deterministic run. A round has the groups that are issued together, in batches."""

from collections.abc import Sequence

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.workers.deterministic_batches import Seat, seats_of
from services.coordinator.workers.turn_batches import TurnRounds, turn_rounds_of
from shoal.config import RunConfig


class Rounds:
    """The seats of the groups in sampling. Without `run.deterministic` no group has a seat."""

    def __init__(self, config: RunConfig, run_id: str, version: CurrentVersion) -> None:
        self._config = config
        self._run_id = run_id
        self._version = version
        self._seats: dict[tuple[int, bool], Seat] = {}
        self._turns: dict[tuple[int, bool], TurnRounds] = {}

    def begin(self, order_numbers: Sequence[int]) -> None:
        """Gives the groups of a round their seats, and another seat to the greedy sample of each, if it has one."""
        kinds = (False, True) if self._config.advantage.baseline == "greedy" else (False,)
        seats = seats_of(
            [[(order_number, is_greedy) for is_greedy in kinds] for order_number in order_numbers],
            name=f"{self._run_id}/{self._version.weights.attempt}/round-{order_numbers[0]}",
            num_completions=self._config.grpo.group_size + len(kinds) - 1,
            config=self._config,
        )
        self._seats |= seats
        if self._config.plays_episodes:
            self._turns |= turn_rounds_of(seats, lambda group: 1 if group[1] else self._config.grpo.group_size)

    def enter(self, order_number: int, *, plays_episodes: bool) -> None:
        """Declares whether a group of a round is played as episodes. Other groups then wait for it only in that way."""
        for is_greedy in (False, True):
            group = (order_number, is_greedy)
            if not plays_episodes:
                if (turns := self._turns.pop(group, None)) is not None:
                    turns.leave_group(group)
            elif (seat := self._seats.pop(group, None)) is not None:
                seat.leave()

    def turns(self, order_number: int, *, is_greedy: bool) -> TurnRounds | None:
        """Returns the rounds in which the episodes of a group, or of its greedy sample, take their turns, if it needs
        any."""
        return self._turns.get((order_number, is_greedy))

    def seat(self, order_number: int, *, is_greedy: bool) -> Seat | None:
        """Returns the seat of a group, or of its greedy sample; None if it needs none."""
        return self._seats.get((order_number, is_greedy))

    def end(self, order_number: int) -> None:
        """Frees the seats of a group that is sampled, or dropped."""
        for is_greedy in (False, True):
            group = (order_number, is_greedy)
            if (seat := self._seats.pop(group, None)) is not None:
                seat.leave()
            if (turns := self._turns.pop(group, None)) is not None:
                turns.leave_group(group)
