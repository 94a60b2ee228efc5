"""A worker of a run: its record, channel and stub, and the run's knowledge about the worker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc.aio

from services.coordinator.workers.registry import WorkerRecord
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from shoal.rollout import WeightVersion
from shoal.v1 import (
    generator_pb2,
    generator_pb2_grpc,
    learner_pb2,
    learner_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    worker_pb2,
)

STATUS_TIMEOUT_S = 5.0
"""Workers promise to answer `GetStatus` within a second; the rest is for a busy machine."""
POLL_S = 0.25
"""Seconds between two status calls to a worker that is loading its model."""


FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0
"""First and longest pause after a failed load; the pauses between double."""


@dataclass
class Standing:
    """A generator's failed loads in a row, and what follows from them. Times are seconds of the event loop's clock."""

    num_failures: int = 0
    retry_at: float = 0.0
    """Time before which no weights are published to the generator."""
    is_quarantined: bool = False
    """Whether the generator gets no weights anymore, until it registers again as a new member."""
    is_in_doubt: bool = False
    """Whether it must load weights, even current ones, before it serves again, so that the canary tests its engine."""

    def load_failed(self, now: float, *, max_failures: int) -> float:
        """Counts a failed load. Returns the seconds until the next try; infinite if there is none."""
        self.num_failures += 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (self.num_failures - 1), MAX_PAUSE_S)
        if self.num_failures >= max_failures:
            self.is_quarantined = True
            pause_s = float("inf")
        self.retry_at = now + pause_s
        return pause_s

    def loaded(self) -> None:
        """Ends the row of failures."""
        self.num_failures, self.retry_at, self.is_in_doubt = 0, 0.0, False

    def may_try(self, now: float) -> bool:
        """Returns whether weights may be published to it now."""
        return not self.is_quarantined and now >= self.retry_at


@dataclass
class Member:
    """A worker that is configured for the run."""

    record: WorkerRecord
    channel: grpc.aio.Channel
    stub: Any
    outstanding: int = 0
    """Undelivered work, by which calls are routed: completions of a generator, or requests of a reward service."""
    serving: bool = False
    """Whether the worker may be called. A generator without the current weights may not be called."""
    notice: str = ""
    """The last status message of a working reward service; empty when all is well."""
    version: WeightVersion | None = None
    """The last weights that passed all checks on a generator; None before its first load."""
    standing: Standing = field(default_factory=Standing)
    is_leaving: bool = False
    """Whether the worker's process was told to end."""
    is_out_of_reach: bool = False
    """Whether a worker with a valid lease did not answer. It serves nothing until it answers again."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the worker is lost, so that a group that it samples does not wait for the call to end."""
    watching: "asyncio.Task[None] | None" = None
    """Waits for the end of its process."""

    @property
    def name(self) -> str:
        return worker_name(self.record)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the worker's process. The end of a process breaks the connection at once."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    def stop_watching(self) -> None:
        """Waits no more for the end of its process."""
        if self.watching is not None:
            self.watching.cancel()


Kind: TypeAlias = worker_pb2.WorkerKind.ValueType
NAMES: dict[Kind, str] = {
    worker_pb2.WORKER_KIND_GENERATOR: "generator",
    worker_pb2.WORKER_KIND_REWARD: "reward service",
    worker_pb2.WORKER_KIND_LEARNER: "learner",
}
SERVICES: dict[Kind, tuple[str, Callable[[grpc.aio.Channel], Any], Any, Any]] = {
    worker_pb2.WORKER_KIND_GENERATOR: (
        "shoal.v1.GeneratorService",
        generator_pb2_grpc.GeneratorServiceStub,
        generator_pb2.GeneratorServiceConfigureRequest,
        generator_pb2.GeneratorServiceGetStatusRequest,
    ),
    worker_pb2.WORKER_KIND_REWARD: (
        "shoal.v1.RewardService",
        reward_pb2_grpc.RewardServiceStub,
        reward_pb2.RewardServiceConfigureRequest,
        reward_pb2.RewardServiceGetStatusRequest,
    ),
    worker_pb2.WORKER_KIND_LEARNER: (
        "shoal.v1.LearnerService",
        learner_pb2_grpc.LearnerServiceStub,
        learner_pb2.LearnerServiceConfigureRequest,
        learner_pb2.LearnerServiceGetStatusRequest,
    ),
}


async def status_of(member: Member) -> Any:
    """Returns a worker's answer to `GetStatus`."""
    return await member.stub.GetStatus(SERVICES[member.record.kind][3](), timeout=STATUS_TIMEOUT_S)


async def loading_status(member: Member) -> Any:
    """Returns the status of a worker that loads; see `while_leased`."""
    return await while_leased(member, lambda: status_of(member))


async def while_leased(member: Member, call: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the result of a call to a worker.

    The import of torch or vllm can keep a worker on a busy machine from answering in time. So a call that gets no
    answer is repeated while the worker's lease lasts; meanwhile the worker is out of reach. Raises `FailedPrecondition`
    when the lease has expired.
    """
    while not member.record.lost:
        try:
            result = await call()
            member.is_out_of_reach = False
            return result
        except (DeadlineExceeded, Unavailable) as error:
            if error.reason != error.default_reason:  # The worker's own answer.
                raise
        member.is_out_of_reach = True
        await asyncio.sleep(POLL_S)
    raise FailedPrecondition(f"it is lost: {member.record.loss_reason}", reason=ErrorReason.WORKER_FAILED)


def worker_name(record: WorkerRecord) -> str:
    return f"{NAMES[record.kind]} {record.address}"
