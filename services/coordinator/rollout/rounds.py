r"""The rounds of a deterministic run, whose groups are issued together in batches, and the turns of their episodes.

    episodes ask for a turn, in any order -> all that have not ended have asked -> one batch samples their turns -> ...
                                                     ^                                                |
                                                     \---- an episode that has ended asks no more ----/

The sampled turns determine the environment's answers, and so which episodes continue. Thus the configuration and the
order of issue alone determine which turns share a batch, as for groups of single turns.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.workers.deterministic_batches import Batch, Seat, seats_of
from shoal.config import RunConfig
from shoal.rollout import Completion

MemberT = TypeVar("MemberT", bound=Hashable)

Episode = tuple[Hashable, int]
"""A group, and the index of a sample in it."""


class TurnRounds:
    """Episodes whose turns are sampled together."""

    def __init__(self, name: str, episodes: Sequence[Episode]) -> None:
        """`name` is a name that no other batch has."""
        self._name = name
        self._episodes = list(episodes)
        self._under_way = set(episodes)
        self._asking: dict[Episode, asyncio.Future[Seat]] = {}
        self._num_rounds = 0
        self.played: dict[Episode, tuple[Completion, dict[str, None]]] = {}
        """The episodes and their generators, so that no episode is played again if scoring fails later."""

    async def seat(self, episode: Episode) -> Seat:
        """Returns the seat of an episode's next turn, once all running episodes have asked for a seat."""
        asked: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
        self._under_way.add(episode)  # It may begin again, alone, after an outage of its environment.
        self._asking[episode] = asked
        self._begin_if_all_ask()
        return await asked

    def leave(self, episode: Episode) -> None:
        """Removes an episode that asks for no further turn; the others no longer wait for it."""
        self._under_way.discard(episode)
        self._asking.pop(episode, None)
        self._begin_if_all_ask()

    def leave_group(self, group: Hashable) -> None:
        """Removes the episodes of a group."""
        for episode in [each for each in self._under_way if each[0] == group]:
            self.leave(episode)

    def _begin_if_all_ask(self) -> None:
        if not self._asking or self._asking.keys() != self._under_way:
            return
        self._num_rounds += 1
        asking, self._asking = self._asking, {}
        batch = Batch(f"{self._name}/turns-{self._num_rounds}", [each for each in self._episodes if each in asking])
        for episode, asked in asking.items():
            if not asked.done():
                asked.set_result(Seat(batch, episode))


@dataclass(frozen=True)
class EpisodeTurns:
    """The place of one episode in the rounds of turns."""

    rounds: TurnRounds
    episode: Episode

    async def seat(self) -> Seat:
        """Returns the seat of its next turn."""
        return await self.rounds.seat(self.episode)

    def leave(self) -> None:
        """Declares that the episode asks for no further turn."""
        self.rounds.leave(self.episode)

    @property
    def played(self) -> tuple[Completion, dict[str, None]] | None:
        """The episode, and the generators that sampled it, if the episode was played before."""
        return self.rounds.played.get(self.episode)

    def keep(self, completion: Completion, worker_ids: dict[str, None]) -> None:
        """Keeps the played episode."""
        self.rounds.played[self.episode] = completion, worker_ids


def turn_rounds_of(seats: Mapping[MemberT, Seat], num_samples: Callable[[MemberT], int]) -> dict[MemberT, TurnRounds]:
    """Returns the rounds of turns of each group. Groups that would share a batch share the rounds."""
    groups: dict[Batch, list[MemberT]] = {}
    for group, seat in seats.items():
        groups.setdefault(seat.batch, []).append(group)
    result: dict[MemberT, TurnRounds] = {}
    for batch, members in groups.items():
        episodes: list[Episode] = [(group, index) for group in members for index in range(num_samples(group))]
        rounds = TurnRounds(f"{batch.name}/episodes", episodes)
        result |= dict.fromkeys(members, rounds)
    return result


class Rounds:
    """The seats of the groups that are being sampled. Without `run.deterministic` no group has a seat."""

    def __init__(self, config: RunConfig, run_id: str, version: CurrentVersion) -> None:
        self._config = config
        self._run_id = run_id
        self._version = version
        self._seats: dict[tuple[int, bool], Seat] = {}
        self._turns: dict[tuple[int, bool], TurnRounds] = {}

    def begin(self, order_numbers: Sequence[int]) -> None:
        """Gives each group of a round a seat, and another seat to the greedy sample of the group, if there is one."""
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
        """Declares whether a group is played as episodes, so that other groups do not wait for its other seats."""
        if plays_episodes:
            self._leave_seats(order_number)
        else:
            self._leave_turns(order_number)

    def turns(self, order_number: int, *, is_greedy: bool) -> TurnRounds | None:
        """Returns the rounds in which the episodes of a group, or of its greedy sample, take turns, if any."""
        return self._turns.get((order_number, is_greedy))

    def seat(self, order_number: int, *, is_greedy: bool) -> Seat | None:
        """Returns the seat of a group, or of its greedy sample; None if no seat is needed."""
        return self._seats.get((order_number, is_greedy))

    def end(self, order_number: int) -> None:
        """Frees the seats of a group that is sampled, or dropped."""
        self._leave_seats(order_number)
        self._leave_turns(order_number)

    def _leave_seats(self, order_number: int) -> None:
        for is_greedy in (False, True):
            if (seat := self._seats.pop((order_number, is_greedy), None)) is not None:
                seat.leave()

    def _leave_turns(self, order_number: int) -> None:
        for is_greedy in (False, True):
            group = (order_number, is_greedy)
            if (turns := self._turns.pop(group, None)) is not None:
                turns.leave_group(group)
