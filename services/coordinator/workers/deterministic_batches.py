r"""Batches of a deterministic run: groups that one generator samples together, all or none, and without other work.

    groups enter, in any order -> all are in -> a generator is idle -> it samples them -> all have ended -> all go on
                       ^                                                      |
                       \------------ one ends early: all begin again ---------/

Which groups share a batch follows from the configuration and the order of issue alone. So a batch that is lost with its
generator, or with the whole run, is sampled again as it was, by whichever generator is idle.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.coordinator.workers.claims import Claim
from services.coordinator.workers.lost_work import WorkFailed
from shoal.config import RunConfig
from shoal.rollout import Completion
from shoal.v1 import generator_pb2

MemberT = TypeVar("MemberT", bound=Hashable)


def seats_of(
    groups: Sequence[Sequence[MemberT]], *, name: str, num_completions: int, config: RunConfig
) -> dict[MemberT, "Seat"]:
    """Divides groups into batches. Returns the seat of each member of a group; no seats if the run needs no batches.

    There is a batch for each generator, or more if a generator cannot sample its part at once. `num_completions` is the
    number of completions of a group. `name` begins the names of the batches; no other batches may use it.
    """
    if not config.run.deterministic or not groups:
        return {}
    at_once = max(1, config.generator.max_num_seqs // num_completions)
    num_batches = min(len(groups), max(config.launch.num_generators, math.ceil(len(groups) / at_once)))
    bounds = [len(groups) * number // num_batches for number in range(num_batches + 1)]
    seats: dict[MemberT, Seat] = {}
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        members = list(itertools.chain.from_iterable(groups[first:end]))
        batch = Batch(f"{name}/batch-{number}", members)
        seats |= {member: Seat(batch, member) for member in members}
    return seats


class Batch:
    """The members of a batch: groups, and whatever else is sampled with them."""

    def __init__(self, name: str, members: Sequence[Hashable]) -> None:
        """`name` is a name that no other batch has."""
        self.name = name
        self._members = list(members)
        self._num_trials = 0
        self._trial = self._next_trial()

    def _next_trial(self) -> "Trial":
        self._num_trials += 1
        return Trial(f"{self.name}/{self._num_trials}")

    @contextlib.asynccontextmanager
    async def trial(self, member: Hashable, num_completions: int) -> AsyncIterator["Trial"]:
        """Begins the block once all members have entered, and ends it once all members have reached its end.

        Raises `WorkFailed` if another member leaves the block early: then all members have to begin again.
        """
        trial = self._trial
        async with trial.taking_part(member, num_completions):
            self._begin_if_all_are_in()
            await trial.begun.wait()
            yield trial

    def leave(self, member: Hashable) -> None:
        """Removes a member that is not sampled again; the others no longer wait for it."""
        self._members.remove(member)
        self._begin_if_all_are_in()

    def _begin_if_all_are_in(self) -> None:
        if self._members and self._trial.has(self._members):
            self._trial.begin(self._members)
            self._trial = self._next_trial()


class Trial:
    """One attempt to sample a batch."""

    def __init__(self, batch_id: str) -> None:
        self.claim: Claim | None = None
        """The batch's claim to a generator, once the trial has begun."""
        self.begun = asyncio.Event()
        self._batch_id = batch_id
        self._sizes: dict[Hashable, int] = {}
        """Completions of each member that is in, in the order of the batch once it has begun."""
        self._scopes: dict[Hashable, asyncio.Timeout] = {}
        self._num_ended = 0
        self._ended = asyncio.Event()

    def has(self, members: Sequence[Hashable]) -> bool:
        """Whether exactly these members have entered."""
        return self._sizes.keys() == set(members)

    def begin(self, members: Sequence[Hashable]) -> None:
        """Lets the members go on, in this order."""
        self._sizes = {member: self._sizes[member] for member in members}
        self.begun.set()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of completions of each member, in order."""
        return tuple(self._sizes.values())

    def place(self, member: Hashable) -> generator_pb2.GroupBatch:
        """Returns the place of a member."""
        return generator_pb2.GroupBatch(
            batch_id=self._batch_id, index=list(self._sizes).index(member), num_groups=len(self._sizes)
        )

    @contextlib.asynccontextmanager
    async def taking_part(self, member: Hashable, num_completions: int) -> AsyncIterator[None]:
        """Ends the block once all members reach its end. If another member leaves early, ends it with `WorkFailed`."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._sizes[member], self._scopes[member] = num_completions, scope
                yield
                self._num_ended += 1
                if self._num_ended == len(self._sizes):
                    self._ended.set()
                await self._ended.wait()
        except TimeoutError:
            if not scope.expired():
                raise
            raise WorkFailed("its batch", "another group of the batch ended early", is_loss=False) from None
        finally:
            del self._scopes[member]
            if not self.begun.is_set():
                del self._sizes[member]
            elif not self._ended.is_set():
                self._break()

    def _break(self) -> None:
        """Ends the blocks of all other members."""
        for scope in self._scopes.values():
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())


@dataclass
class Seat:
    """The place of one member in a batch, and its completions."""

    batch: Batch
    member: Hashable
    worker_id: str = ""
    """The generator that sampled the member; empty before."""
    completions: list[Completion] = field(default_factory=list)
    """Its completions, once the batch is sampled. They are kept if later work such as scoring fails."""

    @property
    def is_sampled(self) -> bool:
        """Whether the batch of the member is sampled."""
        return bool(self.worker_id)

    def keep(self, worker_id: str, completions: Sequence[Completion]) -> None:
        """Keeps the completions that a generator has sampled."""
        self.worker_id, self.completions = worker_id, list(completions)

    def leave(self) -> None:
        """Gives up the seat."""
        self.batch.leave(self.member)
