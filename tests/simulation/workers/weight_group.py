"""The broadcast group of an epoch: its members meet, receive what the learner sends, or find it broken."""

import asyncio
from dataclasses import dataclass, field

from shoal.concurrency import Signal
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, Unavailable
from shoal.rollout import WeightVersion
from tests.simulation.virtual_time import Process


@dataclass(frozen=True)
class Weights:
    """What a broadcast carries: the learner's version, and a number that no other weights have."""

    version: WeightVersion
    digest: str


@dataclass(eq=False)
class WeightGroup:
    epoch: int
    world_size: int
    timeout_s: float
    changed: Signal = field(default_factory=Signal)
    ranks: set[int] = field(default_factory=set)
    receiving: set[int] = field(default_factory=set)
    """Ranks that wait for the broadcast that is under way."""
    num_sent: int = 0
    sent: Weights | None = None
    why_broken: str = ""

    async def join(self, rank: int, process: Process) -> None:
        """Returns when all ranks have joined. Raises `Unavailable` and `DeadlineExceeded`."""
        if rank not in self.ranks:
            self.ranks.add(rank)
            process.at_kill.append(lambda: self.abort(f"rank {rank} is gone"))
            self.changed.notify()
        await self._until(lambda: len(self.ranks) == self.world_size, self.ranks)

    async def receive(self, rank: int) -> Weights:
        """Returns the next broadcast. Raises `Unavailable` and `DeadlineExceeded`."""
        num_sent = self.num_sent
        self.receiving.add(rank)
        self.changed.notify()
        await self._until(lambda: self.num_sent > num_sent, self.ranks)
        assert self.sent is not None
        return self.sent

    async def send(self, weights: Weights, duration_s: float) -> None:
        """Broadcasts to all ranks, once each of them receives. Raises `Unavailable` and `DeadlineExceeded`."""
        await self._until(lambda: len(self.receiving) == self.world_size - 1, self.receiving | {0})
        await asyncio.sleep(duration_s)
        self._raise_if_broken()
        self.sent, self.receiving = weights, set()
        self.num_sent += 1
        self.changed.notify()

    def abort(self, reason: str) -> None:
        self.why_broken = self.why_broken or reason
        self.changed.notify()

    async def _until(self, condition: "object", here: set[int]) -> None:
        assert callable(condition)
        try:
            async with asyncio.timeout(self.timeout_s):
                while not condition():
                    changed = self.changed.next
                    self._raise_if_broken()
                    await changed.wait()
                self._raise_if_broken()
        except TimeoutError:
            missing = ",".join(str(rank) for rank in range(self.world_size) if rank not in here)
            self.abort("it took too long")
            raise DeadlineExceeded(
                f"the group of epoch {self.epoch} took longer than {self.timeout_s:g} s",
                reason=ErrorReason.WEIGHT_GROUP_TIMEOUT,
                metadata={"missing_ranks": missing},
            ) from None

    def _raise_if_broken(self) -> None:
        if self.why_broken:
            raise Unavailable(
                f"the group of epoch {self.epoch} broke: {self.why_broken}", reason=ErrorReason.WEIGHT_GROUP_BROKEN
            )
