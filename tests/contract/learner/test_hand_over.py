"""Groups that are handed over before their step, over real gRPC: a learner without a model, which notes its steps."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("torch")

from services.coordinator.workers.learner_client import LearnerClient
from services.learner import served_run
from services.learner.commands import LearnerCommands
from services.learner.learner import StepResult
from services.learner.service import LearnerService
from shoal.config.derived import max_step_bytes
from shoal.config.live import LiveConfig
from shoal.config.load import config_struct
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from shoal.rollout import HandedGroup, TrainBatch, TrainGroup, WeightVersion
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from shoal.wire import batch_from_wire, batch_to_wire, handed_group_to_wire
from tests.support.configs import run_config
from tests.support.loopback import LEARNER, serving
from tests.support.train_batches import make_batch, make_groups, with_segments, with_supports
from tests.support.waiting import PATIENCE_S, eventually

CONFIG = run_config(grpo={"groups_per_step": 4, "group_size": 4})


class Ranks(LearnerCommands):
    """Commands that load and compute nothing, and keep the batches of their steps."""

    def __init__(self) -> None:
        ranks = SimpleNamespace(device=None, send_command=lambda *_: None, leave=lambda: None)
        self.process_group: Any = ranks
        self.steps: list[TrainBatch] = []
        self.refuses = False
        learner = SimpleNamespace(config=None, version=WeightVersion(0, 0), num_optimizer_steps=0, check=self._check)
        self._learner: Any = learner

    def _check(self, batch: TrainBatch) -> None:
        if self.refuses:
            raise InvalidArgument("no")

    def configure(self, run_id: str, config: Any, *_: Any, **__: Any) -> None:
        self._learner.config = config

    def load_checkpoint(self, request: Any, *_: Any) -> WeightVersion:
        if request.checkpoint_id:
            raise NotFound("there is none")
        self._learner.version = WeightVersion(request.attempt, 0)
        return self._learner.version

    def train_step(self, batch: TrainBatch) -> StepResult:
        self.steps.append(batch)
        version = self._learner.version
        self._learner.version = replace(version, policy_version=version.policy_version + 1)
        return StepResult(True, "", self._learner.version, 1, {})

    def release_cache(self) -> None: ...


class Learner:
    def __init__(self, stub: Any, service: LearnerService, ranks: Ranks) -> None:
        self.stub = stub
        self.ranks = ranks
        self.held = service._served.held_groups

    async def hand_over(self, groups: Sequence[TrainGroup], *, attempt: int = 0, first: int = 0) -> dict[str, str]:
        """Hands groups over, and returns their digests."""
        digests = {}
        for number, group in enumerate(groups, start=first):
            handed, messages = handed_group_to_wire(handed_of(group, number, attempt))
            await self.stub.HandOverGroup(iter(messages), timeout=PATIENCE_S)
            digests[group.group_id] = handed.digest
        return digests

    async def train(self, batch: TrainBatch, digests: dict[str, str]) -> learner_pb2.TrainStepResponse:
        return await self.stub.TrainStep(iter(batch_to_wire(batch, digests)), timeout=PATIENCE_S)

    async def restore(self, attempt: int) -> None:
        await self.stub.LoadCheckpoint(learner_pb2.LoadCheckpointRequest(attempt=attempt), timeout=PATIENCE_S)


def handed_of(group: TrainGroup, number: int, attempt: int = 0) -> HandedGroup:
    completions = tuple(rollout.completion for rollout in group.rollouts)
    return HandedGroup(attempt, number, group.group_id, group.prompt_token_ids, completions, group.traceparent)


@contextlib.asynccontextmanager
async def serving_learner() -> AsyncIterator[Learner]:
    ranks = Ranks()
    service = LearnerService(lambda: ranks, lambda: "127.0.0.1")
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        stub = LearnerServiceStub(channel)
        request = learner_pb2.LearnerServiceConfigureRequest(run_id="run", config=config_struct(CONFIG))
        await stub.Configure(request, timeout=PATIENCE_S)
        await eventually(lambda: service.status().state == worker_pb2.WORKER_STATE_READY, "a learner that is ready")
        yield Learner(stub, service, ranks)
    await service.close()


@pytest.fixture
async def learner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Learner]:
    monkeypatch.setattr(served_run, "WeightPublisher", Mock())
    async with serving_learner() as learner:
        yield learner


def assert_same(batch: TrainBatch, other: TrainBatch) -> None:
    """Checks that two batches have the same messages, which have every value of a batch."""
    assert list(batch_to_wire(batch)) == list(batch_to_wire(other))


async def test_a_step_that_names_its_groups_trains_on_what_a_whole_step_would(learner: Learner) -> None:
    groups = list(with_supports(make_groups()))
    groups[0] = with_segments(make_groups(seed=1)[0], num_prompt_tokens=[3, 4])
    first = groups[1].rollouts[0]
    advantages = np.linspace(-1, 1, first.completion.num_tokens, dtype=np.float32)
    changed = replace(first, token_advantages=advantages, weight=0.5, reward=2.0)
    # A step may leave out completions, and groups; and one group comes whole.
    groups[1] = replace(groups[1], rollouts=(changed, *groups[1].rollouts[2:]), traceparent="00-1-2-03")
    batch = make_batch(groups=groups)
    digests = await learner.hand_over([*groups[:3], *make_groups(5)[4:]])
    await learner.train(batch, digests)
    [step] = learner.ranks.steps
    assert_same(step, batch_from_wire(batch_to_wire(batch)))


async def test_a_step_is_refused_whole_if_one_of_its_groups_is_missing_or_has_another_digest(learner: Learner) -> None:
    batch = make_batch()
    digests = await learner.hand_over(batch.groups)
    for group_id, digest in (("g1", "another"), ("g9", digests["g1"])):
        groups = [replace(group, group_id=group_id) if group.group_id == "g1" else group for group in batch.groups]
        with pytest.raises(FailedPrecondition, match=group_id) as refused:
            await learner.train(replace(batch, groups=tuple(groups)), digests | {group_id: digest})
        assert (refused.value.reason, refused.value.metadata) == (ErrorReason.GROUPS_MISSING, {"num_missing": "1"})
    assert not learner.ranks.steps
    assert (await learner.train(batch, {})).applied, "a refused step may be sent again, with whole groups"


async def test_a_group_again_changes_nothing_and_with_other_content_replaces_the_first(learner: Learner) -> None:
    batch, others = make_batch(), make_groups(seed=7)
    first = await learner.hand_over(batch.groups)
    num_bytes = learner.held.num_bytes
    assert await learner.hand_over(batch.groups) == first and learner.held.num_bytes == num_bytes
    second = await learner.hand_over(others)
    assert not set(first.values()) & set(second.values())
    with pytest.raises(FailedPrecondition) as missing:
        await learner.train(batch, first)
    assert missing.value.metadata == {"num_missing": "4"}
    batch = replace(batch, groups=others)
    await learner.train(batch, second)
    assert_same(learner.ranks.steps[0], batch)


async def test_more_bytes_than_a_step_may_have_are_not_kept_and_what_is_kept_stays(learner: Learner) -> None:
    batch, limit = make_batch(), max_step_bytes(CONFIG)
    digests = await learner.hand_over(batch.groups)
    before = learner.held.num_bytes
    completion = batch.groups[0].rollouts[0].completion
    many = replace(completion, token_ids=np.zeros(20_000, np.int32), behavior_logprobs=np.zeros(20_000, np.float32))
    many = replace(many, version_spans=(replace(completion.version_spans[0], end=20_000),))
    handed = replace(handed_of(batch.groups[0], 9), completions=(many,) * (limit // 160_000 + 1))
    for group_id in ("first", "second"):
        _, messages = handed_group_to_wire(replace(handed, group_id=group_id))
        with pytest.raises(ResourceExhausted, match="HandOverGroup") as refused:
            await learner.stub.HandOverGroup(iter(messages), timeout=PATIENCE_S)
        assert refused.value.reason == ErrorReason.HELD_GROUPS_FULL
        assert refused.value.metadata == {"max_bytes": str(limit)}
    assert learner.held.num_bytes == before
    assert (await learner.train(batch, digests)).applied


async def test_a_group_that_did_not_arrive_whole_is_not_kept(learner: Learner) -> None:
    _, (header, *completions) = handed_group_to_wire(handed_of(make_groups()[0], 0))
    for messages, what in (([header], "announced 4 rollouts"), (completions, "^part: "), ([], "^part: ")):
        with pytest.raises(InvalidArgument, match=what):
            await learner.stub.HandOverGroup(iter(messages), timeout=PATIENCE_S)
    assert learner.held.num_bytes == 0


async def test_another_attempt_drops_the_groups_and_takes_no_late_ones(learner: Learner) -> None:
    digests = await learner.hand_over(make_groups())
    await learner.restore(attempt=1)
    assert learner.held.num_bytes == 0
    with pytest.raises(FailedPrecondition) as refused:
        await learner.hand_over(make_groups())
    assert (refused.value.reason, refused.value.metadata) == (ErrorReason.VERSION_MISMATCH, {"attempt": "1"})
    batch = make_batch(version=WeightVersion(1, 0))
    with pytest.raises(FailedPrecondition) as missing:
        await learner.train(batch, digests)
    assert missing.value.reason == ErrorReason.GROUPS_MISSING
    digests = await learner.hand_over(make_groups(), attempt=1)
    with pytest.raises(FailedPrecondition) as late:
        await learner.train(replace(make_batch("late"), next_order_number=99), digests)
    assert late.value.reason == ErrorReason.VERSION_MISMATCH
    assert (await learner.train(batch, digests)).applied, "a late step of another attempt drops nothing"


async def test_a_step_drops_its_groups_and_earlier_ones_and_a_repeat_gets_its_result(learner: Learner) -> None:
    *groups, later = make_groups(5)
    digests = await learner.hand_over([*groups, later])
    batch = replace(make_batch(groups=groups[1:]), next_order_number=4)
    first = await learner.train(batch, digests)
    assert await learner.train(batch, digests) == first and len(learner.ranks.steps) == 1
    late = await learner.hand_over(groups)
    following = replace(batch, train_step_id="next", expected_version=WeightVersion(0, 1), next_order_number=5)
    with pytest.raises(FailedPrecondition) as missing:
        await learner.train(following, late)
    assert missing.value.metadata == {"num_missing": "3"}
    assert (await learner.train(replace(following, groups=(later,)), digests)).applied
    assert learner.held.num_bytes == 0


async def test_a_refused_step_takes_whole_groups(learner: Learner) -> None:
    digests = await learner.hand_over(make_groups())
    batch = replace(make_batch(), next_order_number=4)
    learner.ranks.refuses = True
    with pytest.raises(InvalidArgument):
        await learner.train(batch, digests)
    learner.ranks.refuses = False
    with pytest.raises(FailedPrecondition) as missing:
        await learner.train(batch, digests)
    assert missing.value.reason == ErrorReason.GROUPS_MISSING
    assert (await learner.train(batch, {})).applied


async def test_after_a_restart_between_hand_over_and_step_the_coordinator_sends_whole_groups(learner: Learner) -> None:
    member = SimpleNamespace(stub=learner.stub, record=None)

    async def still_serves(_: Any) -> bool:
        return True

    fleet: Any = SimpleNamespace(learner=member, still_serves=still_serves)
    client = LearnerClient(fleet, LiveConfig(CONFIG), Mock())
    batch = replace(make_batch(), next_order_number=4)
    for number, group in enumerate(batch.groups):
        await client.hand_over.give(handed_of(group, number))
    async with serving_learner() as restarted:
        member.stub = restarted.stub
        assert (await client.train_step(batch)).applied
    assert not learner.ranks.steps
    [step] = restarted.ranks.steps
    assert_same(step, batch)
