"""Groups on their way to reward services that are busy, that die, and of which there are several."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.events import EventLog
from services.coordinator.fleet import Member
from services.coordinator.rewards import GrowingGroup, Rewards
from services.coordinator.workers import WorkerRecord
from services.reward.service import RewardService
from shoal.config.load import config_struct, parse_config
from shoal.errors import InvalidArgument, ResourceExhausted, ShoalError
from shoal.rollout import Completion, FinishReason, GroundTruth, Prompt, Score, ScoreOutcome
from shoal.rpc.channel import connect
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.rpc.server import RpcServer
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import (
    RewardServiceServicer,
    RewardServiceStub,
    add_RewardServiceServicer_to_server,
)

NAME = "shoal.v1.RewardService"
RETRY_AFTER_S = 0.4


class Replica(RewardServiceServicer):
    """Pays each completion its number, and can be told to refuse or to die after so many of a call."""

    def __init__(self) -> None:
        self.refuses_after: list[int] = []
        """For each of the first calls: completions that it scores before it refuses the rest."""
        self.dies_after: int | None = None
        self.holds: asyncio.Event | None = None
        """Wait for this before a call ends."""
        self.calls: list[list[int]] = []
        """Of each call, the samples that it got."""
        self.began: list[float] = []
        self.delivered: Counter[str] = Counter()
        """Scores sent, by the completion's text."""
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
    """What `Rewards` looks at of a fleet."""

    def __init__(self, members: list[Member]) -> None:
        self.rewards = members

    async def lost(self, member: Member, error: ShoalError) -> None:
        if member in self.rewards:
            self.rewards.remove(member)

    async def wait_for_change(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)


@asynccontextmanager
async def routed(tmp_path: Path, *servicers: Any) -> AsyncIterator[Rewards]:
    """The router over services behind real gRPC."""
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
            members.append(Member(record, channel, RewardServiceStub(channel)))
        events = EventLog(tmp_path / "events.jsonl")
        config = parse_config({"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}})
        try:
            yield Rewards(Replicas(members), events, config)  # type: ignore[arg-type]
        finally:
            for servicer in servicers:
                if getattr(servicer, "stopping", None) is None:  # gRPC does not bear to be stopped twice.
                    await servicer.server.stop(0)


def group_of(name: str, size: int) -> GrowingGroup:
    """A group that is sampled; sample n is worth n."""
    group = GrowingGroup()
    for index in range(size):
        tokens = np.array([5], np.int32)
        text = f"{name} {index}"
        group.add(Completion(index, tokens, np.zeros(1, np.float32), FinishReason.STOP, (), seed=0, text=text))
    group.complete()
    return group


async def score(rewards: Rewards, name: str, size: int, truth: GroundTruth | None = None) -> list[Score]:
    prompt = Prompt(f"{name}:0", np.zeros(0, np.int32), "", (truth or GroundTruth("gsm8k", "5"),))
    return list(await rewards.score(name, prompt, group_of(name, size), timeout_s=30.0))


async def test_a_busy_service_is_asked_again_for_the_rest_and_not_before_it_said(tmp_path: Path) -> None:
    replica = Replica()
    replica.refuses_after = [3, 0, 4]
    async with routed(tmp_path, replica) as rewards:
        scores = await score(rewards, "a", 10)
    assert [one.reward for one in scores] == list(range(10)), scores
    assert replica.calls == [[0, 1, 2], [], [3, 4, 5, 6], [7, 8, 9]]
    pauses = [later - earlier for earlier, later in zip(replica.began, replica.began[1:], strict=False)]
    assert min(pauses) >= RETRY_AFTER_S, f"asked again after {min(pauses):.3f} s, told {RETRY_AFTER_S}"
    assert rewards.occupancy.take().num_tokens == 10


async def test_a_completion_that_no_message_holds_is_refused_at_once(tmp_path: Path) -> None:
    async with routed(tmp_path, Replica()) as rewards:
        group = GrowingGroup()
        tokens = np.array([5], np.int32)
        text = "x" * (MAX_MESSAGE_BYTES + 1)
        group.add(Completion(0, tokens, np.zeros(1, np.float32), FinishReason.STOP, (), seed=0, text=text))
        group.complete()
        prompt = Prompt("a:0", np.zeros(0, np.int32), "", (GroundTruth("gsm8k", "5"),))
        with pytest.raises(InvalidArgument, match="larger than max"):
            await rewards.score("group-a", prompt, group, timeout_s=30.0)


async def test_what_a_dying_replica_has_not_scored_is_scored_by_another_each_once(tmp_path: Path) -> None:
    dying, other = Replica(), Replica()
    dying.dies_after = 3
    async with routed(tmp_path, dying, other) as rewards:
        by_group = await asyncio.gather(*(score(rewards, f"g{number}", 8) for number in range(12)))
        assert dying.stopping is not None
        await dying.stopping
    for number, scores in enumerate(by_group):
        assert [one.reward for one in scores] == list(range(8)), f"group {number}: {scores}"
    assert dying.delivered and other.delivered
    # A score that was sent and never arrived is made again: it died with its connection.
    twice = {text for text, count in (dying.delivered + other.delivered).items() if count > 1}
    assert len(twice) <= 3 * len(dying.calls), twice
    assert sum((dying.delivered + other.delivered).values()) - len(twice) == 12 * 8
    assert "scored again elsewhere" in (tmp_path / "events.jsonl").read_text()


async def test_groups_go_to_the_replica_with_the_fewest(tmp_path: Path) -> None:
    replicas = [Replica() for _ in range(3)]
    go_on = asyncio.Event()
    for replica in replicas:
        replica.holds = go_on
    async with routed(tmp_path, *replicas) as rewards:
        scoring = [asyncio.create_task(score(rewards, f"g{number}", 2)) for number in range(9)]
        async with asyncio.timeout(10):
            num_calls = [len(replica.calls) for replica in replicas]
            while sum(num_calls) < 9:
                await asyncio.sleep(0.01)
                num_calls = [len(replica.calls) for replica in replicas]
        assert num_calls == [3, 3, 3]
        go_on.set()
        await asyncio.gather(*scoring)


@pytest.mark.parametrize("num_groups", [1, 4])
async def test_groups_larger_than_the_queue_get_through(tmp_path: Path, num_groups: int) -> None:
    """A real service with room for two: each call gets on, whatever the others do."""
    service = RewardService()
    async with routed(tmp_path, service) as rewards:
        values = {
            "model": {"path": "m"},
            "data": {"sources": [{"task": "arithmetic"}]},
            "grpo": {"group_size": 2},
            "reward": {"num_processes": 1, "max_queued": 1},
        }
        stub = rewards._fleet.rewards[0].stub
        config = config_struct(parse_config(values))
        await stub.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="r", config=config), timeout=30)
        async with asyncio.timeout(30):
            state = service.status().state
            while state != worker_pb2.WORKER_STATE_READY:
                await asyncio.sleep(0.02)
                state = service.status().state
        truth = GroundTruth("gsm8k", "7")
        by_group = await asyncio.gather(*(score(rewards, f"g{n}", 12, truth) for n in range(num_groups)))
        await service.close()
    for scores in by_group:
        assert [(one.outcome, one.reward) for one in scores] == [
            (ScoreOutcome.SCORED, float(index == 7)) for index in range(12)
        ], scores
