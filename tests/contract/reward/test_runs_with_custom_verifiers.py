"""Contract tests of runs with custom verifiers: the coordinator over real gRPC and, where it matters, a real pool."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from services.reward.service import RewardService
from shoal.errors import InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import reward_pb2, worker_pb2
from tests.contract.reward.test_custom_verifiers import write
from tests.support.cluster import Cluster, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config

MINE = {"sources": [{"task": "arithmetic", "task_size": 200, "verifier": "mine"}], "max_prompt_tokens": 200}


async def test_the_digest_of_the_verifier_code_is_in_the_event_log_and_in_every_score(
    cluster: Cluster, model: Path, tmp_path: Path, reward: RewardService
) -> None:
    first, second = (
        "def score(completion): return len(completion)\n",
        "def score(completion): return -len(completion)\n",
    )
    path = write(tmp_path / "score.py", first)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (first, second)]
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05), rewards=(reward,))
    config = arithmetic_config(
        model,
        data=MINE,
        run={"name": "custom", "num_steps": 1000},
        reward={"num_processes": 1, "custom": {"mine": {"file": path, "reload": True}}},
    )
    await cluster.start(config)
    events = await cluster.until("step")
    codes = of_kind(events, "verifier_code")
    assert [event.attributes["code_digest"] for event in codes] == digests[:1]
    write(Path(path), second)
    events = await cluster.until(lambda event: event.kind == "verifier_code" and event.attributes["code_digest_before"])
    assert events[-1].attributes["code_digest"] == digests[1], events[-1]
    assert events[-1].attributes["code_digest_before"] == digests[0]
    assert f"code {digests[1][:12]} of mine (was {digests[0][:12]})" in events[-1].message
    await cluster.stop(pb.STOP_MODE_DRAIN)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    groups = (await cluster.stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    parts = [part for group in groups for rollout in group.rollouts for part in rollout.score.verifier_scores]
    assert {(part.code_digest, part.value > 0) for part in parts} >= {(digests[0], True)}
    wrong = [part for part in parts if part.code_digest != digests[0 if part.value > 0 else 1]]
    assert not wrong, f"{len(wrong)} of {len(parts)} scores name other code than they used"


async def test_a_run_whose_verifier_does_not_import_fails_at_once_with_the_reason(
    cluster: Cluster, model: Path, tmp_path: Path, reward: RewardService
) -> None:
    path = write(tmp_path / "score.py", "import no_such_module\n")
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(arithmetic_config(model, data=MINE, reward={"custom": {"mine": {"file": path}}}))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert all(part in run.message for part in ("reward.custom.mine.file: ", f"ModuleNotFoundError at {path}:1")), run


async def test_an_unknown_verifier_name_is_refused_before_anything_is_sampled(cluster: Cluster, model: Path) -> None:
    with pytest.raises(InvalidArgument, match="'mine'"):
        await cluster.start(arithmetic_config(model, data=MINE))
    closed = {"servers": {"other": {"address": "127.0.0.1:1", "verifiers": ["style"]}}}
    with pytest.raises(InvalidArgument, match=r"'mine'.*style"):
        await cluster.start(arithmetic_config(model, data=MINE, reward=closed))
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator, rewards=(ScriptedReward(),))
    servers = {"servers": {"other": {"address": "127.0.0.1:1"}}}
    await cluster.start(arithmetic_config(model, data=MINE, reward=servers))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert "'mine'" in run.message, run
    assert generator.num_completions == 0


async def test_a_verifier_that_is_unavailable_at_the_reward_service_is_refused_with_its_reason(
    cluster: Cluster, model: Path
) -> None:
    class Unavailable(ScriptedReward):
        async def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
            info = reward_pb2.VerifierInfo(name="mine", description="Mine.", unavailable="no such library")
            return reward_pb2.ListVerifiersResponse(verifiers=[info])

    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator, rewards=(Unavailable(),))
    await cluster.start(arithmetic_config(model, data=MINE, reward={"custom": {"mine": {"entry_point": "a:b"}}}))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and generator.num_completions == 0
    assert "'mine'" in run.message and run.message.endswith(": no such library"), run


async def test_a_status_message_of_a_reward_service_becomes_an_event(cluster: Cluster, model: Path) -> None:
    reward = ScriptedReward()
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05), rewards=(reward,))
    await cluster.start(arithmetic_config(model, run={"name": "notice", "num_steps": 1000}))
    await cluster.until("step")
    for message in ("mine keeps its code", ""):
        reward.heartbeat = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_READY, message=message)
        events = await cluster.until(
            lambda event, notice=message: event.kind == "worker_notice" and event.attributes["notice"] == notice
        )
        assert (message or "all is well again") in events[-1].message, events[-1]
