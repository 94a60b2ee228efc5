"""Contract tests of the routing of groups to reward services: busy ones, dying ones, and several at once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.coordinator.store.events import EventLog
from services.coordinator.workers.group_progress import GrowingGroup
from services.coordinator.workers.lost_work import LostWork
from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import WorkerRecord
from services.coordinator.workers.reward_pool import RewardPool
from services.reward.service import RewardService
from shoal.errors import InvalidArgument, ResourceExhausted, ShoalError
from shoal.rollout import Completion, FinishReason, GroundTruth, Prompt
from shoal.rpc.channel import connect
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.rpc.server import RpcServer
from shoal.scores import Score, ScoreOutcome
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import (
    RewardServiceServicer,
    RewardServiceStub,
    add_RewardServiceServicer_to_server,
)
from tests.support.configs import run_config
from tests.support.reward_client import ALLOWED, config
from tests.support.waiting import eventually

NAME = "shoal.v1.RewardService"
RETRY_AFTER_S = 0.4


class Replica(RewardServiceServicer):
    """A service that scores each completion with its number; it can refuse, die or hold calls by script."""

    def __init__(self) -> None:
        self.refuses_after: list[int] = []
        """For each of the first calls: number of completions to score before refusing the rest."""
        self.dies_after: int | None = None
        """Number of completions to score before the server stops."""
        self.holds: asyncio.Event | None = None
        """Event to wait for before a call ends."""
        self.calls: list[list[int]] = []
        """Sample indices received, by call."""
        self.began: list[float] = []
        self.delivered: Counter[str] = Counter()
        """Number of scores sent, by the text of the completion."""
        self.server: RpcServer
        self.stopping: asyncio.Task[None] | None = None

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        refuses_after = self.refuses_after.pop(0) if self.refuses_after else None
        samples: list[int] = []
        self.calls.append(samples)
        self.began.append(time.monotonic())
        async for request in request_iterator:
            if request.HasField("prompt"):
                continue
            if len(samples) == refuses_after:
                raise ResourceExhausted("full", reason="QUEUE_FULL", retry_after_s=RETRY_AFTER_S)
            if len(samples) == self.dies_after:
                if self.stopping is None:
                    self.stopping = asyncio.create_task(self.server.stop(0))
                await asyncio.Event().wait()
            samples.append(request.completion.sample_index)
            self.delivered[request.completion.text] += 1
            yield reward_pb2.ScoreGroupResponse(
                score=rollout_pb2.Score(
                    sample_index=request.completion.sample_index,
                    outcome=rollout_pb2.SCORE_OUTCOME_SCORED,
                    reward=float(request.completion.text.split()[-1]),
                )
            )
        if self.holds is not None:
            await self.holds.wait()


class Replicas:
    """The part of a fleet that `RewardPool` uses."""

    def __init__(self, members: list[Member]) -> None:
        self.rewards = members
        self.changed = SimpleNamespace(wait=asyncio.sleep)

    async def report_lost(self, member: Member, error: ShoalError) -> None:
        self.out_of_reach(member, error)

    def out_of_reach(self, member: Member, error: ShoalError) -> None:
        if member in self.rewards:
            self.rewards.remove(member)


@asynccontextmanager
async def routed(tmp_path: Path, *servicers: Any) -> AsyncIterator[RewardPool]:
    async with AsyncExitStack() as stack:
        members = []
        for number, servicer in enumerate(servicers):
            server = RpcServer(listen="127.0.0.1:0")
            server.add(add_RewardServiceServicer_to_server, servicer, NAME)
            await server.start()
            servicer.server = server
            address = f"127.0.0.1:{server.port}"
            channel = await stack.enter_async_context(connect(address, NAME))
            record = WorkerRecord(f"reward-{number}", worker_pb2.WORKER_KIND_REWARD, address, 0, time.monotonic())
            members.append(Member(record, channel, RewardServiceStub(channel), serving=True))
        events = EventLog(tmp_path / "events.jsonl")
        try:
            yield RewardPool(Replicas(members), events, run_config(), time.monotonic)  # type: ignore[arg-type]
        finally:
            for servicer in servicers:
                if getattr(servicer, "stopping", None) is None:  # A gRPC server must not be stopped twice.
                    await servicer.server.stop(0)


def group_of(name: str, size: int) -> GrowingGroup:
    """Returns a complete group in which sample n is worth n."""
    group = GrowingGroup()
    for index in range(size):
        tokens = np.array([5], np.int32)
        text = f"{name} {index}"
        group.add(Completion(index, tokens, np.zeros(1, np.float32), FinishReason.STOP, (), seed=0, text=text))
    group.complete()
    return group


async def score(rewards: RewardPool, name: str, size: int, truth: GroundTruth | None = None) -> list[Score]:
    prompt = Prompt(f"{name}:0", np.zeros(0, np.int32), "", (truth or GroundTruth("gsm8k", "5"),))
    return list(await rewards.score(name, prompt, group_of(name, size), {}, timeout_s=30.0, lost=LostWork(3)))


async def test_a_busy_service_is_retried_for_the_rest_and_not_before_its_retry_delay(tmp_path: Path) -> None:
    replica = Replica()
    replica.refuses_after = [3, 0, 4]
    async with routed(tmp_path, replica) as rewards:
        scores = await score(rewards, "a", 10)
    assert [one.reward for one in scores] == list(range(10)), scores
    assert replica.calls == [[0, 1, 2], [], [3, 4, 5, 6], [7, 8, 9]]
    pauses = [later - earlier for earlier, later in zip(replica.began, replica.began[1:], strict=False)]
    assert min(pauses) >= RETRY_AFTER_S, f"retried after {min(pauses):.3f} s instead of {RETRY_AFTER_S}"
    assert rewards.utilization.take().num_tokens == 10


async def test_a_completion_larger_than_a_message_is_refused_at_once(tmp_path: Path) -> None:
    async with routed(tmp_path, Replica()) as rewards:
        group = GrowingGroup()
        tokens = np.array([5], np.int32)
        text = "x" * (MAX_MESSAGE_BYTES + 1)
        group.add(Completion(0, tokens, np.zeros(1, np.float32), FinishReason.STOP, (), seed=0, text=text))
        group.complete()
        prompt = Prompt("a:0", np.zeros(0, np.int32), "", (GroundTruth("gsm8k", "5"),))
        with pytest.raises(InvalidArgument, match="more than gRPC"):
            await rewards.score("group-a", prompt, group, {}, timeout_s=30.0, lost=LostWork(3))


async def test_another_replica_scores_once_each_completion_that_a_dying_one_left(tmp_path: Path) -> None:
    dying, other = Replica(), Replica()
    dying.dies_after = 3
    async with routed(tmp_path, dying, other) as rewards:
        by_group = await asyncio.gather(*(score(rewards, f"g{number}", 8) for number in range(12)))
        assert dying.stopping is not None
        await dying.stopping
    for number, scores in enumerate(by_group):
        assert [one.reward for one in scores] == list(range(8)), f"group {number}: {scores}"
    assert dying.delivered and other.delivered
    # A score that was sent but lost with its connection is computed again.
    twice = {text for text, count in (dying.delivered + other.delivered).items() if count > 1}
    assert len(twice) <= 3 * len(dying.calls), twice
    assert sum((dying.delivered + other.delivered).values()) - len(twice) == 12 * 8
    assert '"scoring_repeated"' in (tmp_path / "events.jsonl").read_text()


async def test_groups_go_to_the_replica_with_the_fewest_groups(tmp_path: Path) -> None:
    replicas = [Replica() for _ in range(3)]
    release = asyncio.Event()
    for replica in replicas:
        replica.holds = release
    async with routed(tmp_path, *replicas) as rewards:
        scoring = [asyncio.create_task(score(rewards, f"g{number}", 2)) for number in range(9)]
        await eventually(lambda: sum(len(replica.calls) for replica in replicas) == 9)
        assert [len(replica.calls) for replica in replicas] == [3, 3, 3]
        release.set()
        await asyncio.gather(*scoring)


@pytest.mark.parametrize("num_groups", [1, 4])
async def test_groups_larger_than_the_queue_are_scored(tmp_path: Path, num_groups: int) -> None:
    """A real service has room for two completions; every call makes progress, whatever the others do."""
    service = RewardService(ALLOWED)
    async with routed(tmp_path, service) as rewards:
        stub = rewards._fleet.rewards[0].stub
        struct = config(num_processes=1, max_queued=1)
        await stub.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="r", config=struct), timeout=60)
        await eventually(lambda: service.status().state == worker_pb2.WORKER_STATE_READY)
        truth = GroundTruth("gsm8k", "7")
        by_group = await asyncio.gather(*(score(rewards, f"g{n}", 12, truth) for n in range(num_groups)))
        await service.close()
    for scores in by_group:
        assert [(one.outcome, one.reward) for one in scores] == [
            (ScoreOutcome.SCORED, float(index == 7)) for index in range(12)
        ], scores
