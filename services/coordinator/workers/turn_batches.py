r"""Turns of a deterministic run's episodes: all that are under way take a turn together, as one batch.

    episodes ask for a turn, in any order -> all that have not ended have asked -> one batch samples their turns -> ...
                                                     ^                                                |
                                                     \---- an episode that has ended asks no more ----/

What an environment answers, and so which episodes go on, follows from what was sampled. So which turns share a batch
follows from the configuration and the order of issue alone, as for groups of single turns.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from services.coordinator.workers.deterministic_batches import Batch, Seat
from shoal.rollout import Completion

MemberT = TypeVar("MemberT", bound=Hashable)

Episode = tuple[Hashable, int]
"""A group, and the index of a sample in it."""


class TurnRounds:
    """The episodes that take their turns together."""

    def __init__(self, name: str, episodes: Sequence[Episode]) -> None:
        """`name` is one that no other batch has."""
        self._name = name
        self._episodes = list(episodes)
        self._under_way = set(episodes)
        self._asking: dict[Episode, asyncio.Future[Seat]] = {}
        self._num_rounds = 0
        self.played: dict[Episode, tuple[Completion, dict[str, None]]] = {}
        """The episodes and the generators that sampled them. If scoring fails later, no episode is played again."""

    async def seat(self, episode: Episode) -> Seat:
        """Returns the seat of an episode's next turn, once all that are under way have asked for theirs."""
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
    """The part of one episode in the rounds of turns."""

    rounds: TurnRounds
    episode: Episode

    async def seat(self) -> Seat:
        """Returns the seat of its next turn."""
        return await self.rounds.seat(self.episode)

    def leave(self) -> None:
        """Says that it asks for no further turn."""
        self.rounds.leave(self.episode)

    @property
    def played(self) -> tuple[Completion, dict[str, None]] | None:
        """The episode, and the generators that sampled it, if it was played before."""
        return self.rounds.played.get(self.episode)

    def keep(self, completion: Completion, worker_ids: dict[str, None]) -> None:
        """Keeps the episode as it was played."""
        self.rounds.played[self.episode] = completion, worker_ids


def turn_rounds_of(seats: Mapping[MemberT, Seat], num_samples: Callable[[MemberT], int]) -> dict[MemberT, TurnRounds]:
    """Returns the rounds of turns of each group; the groups that would share a batch share them."""
    groups: dict[Batch, list[MemberT]] = {}
    for group, seat in seats.items():
        groups.setdefault(seat.batch, []).append(group)
    result: dict[MemberT, TurnRounds] = {}
    for batch, members in groups.items():
        episodes: list[Episode] = [(group, index) for group in members for index in range(num_samples(group))]
        rounds = TurnRounds(f"{batch.name}/episodes", episodes)
        result |= dict.fromkeys(members, rounds)
    return result
