"""Claims: groups that wait for room on a generator. Bindings: the room that groups have received."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.coordinator.workers.member import Member
from shoal.rollout import WeightVersion
from shoal.v1 import generator_pb2


class Binding:
    """The room of a group on one generator: the number of completions that the group awaits there."""

    def __init__(self, member: Member, num_completions: int, freed: Callable[[], None]) -> None:
        """`freed` is called when there is more room."""
        self.member = member
        self.place: generator_pb2.GroupBatch | None = None
        """The place of the group in its batch, if it belongs to a batch."""
        self._num_completions = 0
        self._freed = freed
        self.resize(num_completions)

    def resize(self, num_completions: int) -> None:
        """Sets the number of completions that the group waits for."""
        growth = num_completions - self._num_completions
        self._num_completions = num_completions
        self.member.outstanding += growth
        if growth < 0:
            self._freed()


@dataclass(order=True)
class Claim:
    """A group that waits for room, or a batch of groups that waits for an idle generator."""

    priority: int
    number: int
    sizes: tuple[int, ...] = field(compare=False)
    """Number of completions of each group."""
    version: WeightVersion | None = field(compare=False)
    is_batch: bool = field(compare=False, default=False)
    bindings: "asyncio.Future[list[Binding]]" = field(compare=False, default_factory=asyncio.Future)
    """The result: one binding for each group."""
