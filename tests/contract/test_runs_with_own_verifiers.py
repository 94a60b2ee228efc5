"""Runs whose verifiers do not come with Shoal: the coordinator over real gRPC, and where it matters a real pool."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.service import RewardService
from shoal.errors import InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import reward_pb2, worker_pb2
from tests.contract.test_own_verifiers import write
from tests.house import House
from tests.scripted import ScriptedGenerator, ScriptedReward, arithmetic_config

MINE = {"sources": [{"task": "arithmetic", "task_size": 200, "verifier": "mine"}], "max_prompt_tokens": 200}


@pytest.fixture
async def reward() -> AsyncIterator[RewardService]:
    service = RewardService()
    yield service
    await service.close()


async def add_workers(house: House, reward: Any, generator: ScriptedGenerator) -> None:
    await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-0")
    await house.add(worker_pb2.WORKER_KIND_REWARD, reward, "reward-0")
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, generator, "generator-0")


async def test_which_code_scored_is_in_the_event_log_and_beside_every_score(
    house: House, model: Path, tmp_path: Path, reward: RewardService
) -> None:
    first, second = (
        "def score(completion): return len(completion)\n",
        "def score(completion): return -len(completion)\n",
    )
    path = write(tmp_path / "score.py", first)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (first, second)]
    await add_workers(house, reward, ScriptedGenerator(house.plane, delay_s=0.05))
    config = arithmetic_config(
        model,
        data=MINE,
        run={"name": "own", "num_steps": 1000},
        reward={"num_processes": 1, "custom": {"mine": {"file": path, "reload": True}}},
    )
    await house.start(config)
    events = await house.until(lambda event: event.kind == "step")
    codes = [event for event in events if event.kind == "verifier_code"]
    assert [event.attributes["code_digest"] for event in codes] == digests[:1]
    write(Path(path), second)
    events = await house.until(lambda event: event.kind == "verifier_code" and event.attributes["code_digest_before"])
    assert events[-1].attributes["code_digest"] == digests[1], events[-1]
    assert events[-1].attributes["code_digest_before"] == digests[0]
    assert f"code {digests[1][:12]} of mine, not {digests[0][:12]}" in events[-1].message
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_DRAIN), timeout=10)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    groups = (await house.stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=10)).groups
    parts = [part for group in groups for rollout in group.rollouts for part in rollout.score.verifier_scores]
    assert {(part.code_digest, part.value > 0) for part in parts} >= {(digests[0], True)}
    wrong = [part for part in parts if part.code_digest != digests[0 if part.value > 0 else 1]]
    assert not wrong, f"{len(wrong)} of {len(parts)} scores are not of the code that they name"


async def test_a_run_whose_verifier_does_not_import_fails_at_once_and_says_why(
    house: House, model: Path, tmp_path: Path, reward: RewardService
) -> None:
    path = write(tmp_path / "score.py", "import no_such_module\n")
    await add_workers(house, reward, ScriptedGenerator(house.plane))
    await house.start(arithmetic_config(model, data=MINE, reward={"custom": {"mine": {"file": path}}}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert f"reward.custom.mine.file: {path} does not import: ModuleNotFoundError at {path}:1" in run.message, run


async def test_a_name_that_only_a_server_may_have_is_asked_for_before_anything_is_sampled(
    house: House, model: Path
) -> None:
    with pytest.raises(InvalidArgument, match="no verifier is called 'mine'"):
        await house.start(arithmetic_config(model, data=MINE))
    closed = {"servers": {"other": {"address": "127.0.0.1:1", "verifiers": ["style"]}}}
    with pytest.raises(InvalidArgument, match=r"no verifier is called 'mine'; known: .*style"):
        await house.start(arithmetic_config(model, data=MINE, reward=closed))
    generator = ScriptedGenerator(house.plane)
    await add_workers(house, ScriptedReward(), generator)
    servers = {"servers": {"other": {"address": "127.0.0.1:1"}}}
    await house.start(arithmetic_config(model, data=MINE, reward=servers))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert "names the verifier 'mine', which the reward service does not have; known: " in run.message, run
    assert generator.num_completions == 0


async def test_a_verifier_that_cannot_work_at_the_reward_service_is_refused_with_its_reason(
    house: House, model: Path
) -> None:
    class Unavailable(ScriptedReward):
        async def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
            info = reward_pb2.VerifierInfo(name="mine", description="UNAVAILABLE HERE: no such library\n\nMine.")
            return reward_pb2.ListVerifiersResponse(verifiers=[info])

    generator = ScriptedGenerator(house.plane)
    await add_workers(house, Unavailable(), generator)
    await house.start(arithmetic_config(model, data=MINE, reward={"custom": {"mine": {"entry_point": "a:b"}}}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and generator.num_completions == 0
    assert "the verifier 'mine', which cannot work at reward service 127.0.0.1:" in run.message, run
    assert run.message.endswith(": no such library"), run


async def test_what_a_reward_service_says_of_itself_is_an_event(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    await house.start(arithmetic_config(model, run={"name": "notice", "num_steps": 1000}))
    await house.until(lambda event: event.kind == "step")
    for message in ("mine keeps its code", ""):
        status = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_READY, message=message)
        house.registry.heartbeat("reward-0", status)
        events = await house.until(
            lambda event, notice=message: event.kind == "worker_notice" and event.attributes["notice"] == notice
        )
        assert (message or "all is well again") in events[-1].message, events[-1]
