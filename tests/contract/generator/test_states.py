"""Pause, sleep, scoring and the end of a generator."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument, Unavailable
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.wire import float32_from_wire, int32_to_wire
from tests.support.generator_client import PROMPT, TIMEOUT_S, Generator


async def test_a_paused_generator_admits_requests_and_samples_them_after_resume(ready: Generator) -> None:
    for _ in range(2):
        await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_PAUSED
    waiting = asyncio.create_task(ready.sample())
    await ready.load(1)
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_PAUSED
    assert not ready.engine.unpaused.is_set()
    await ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)
    assert sorted(await waiting) == [0, 1]
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_READY


async def test_a_sleeping_engine_wakes_for_calls_that_need_it(ready: Generator) -> None:
    async def sleep() -> None:
        for _ in range(2):
            await ready.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
        assert ready.engine.is_asleep

    await sleep()
    waiting = asyncio.create_task(ready.sample())
    await ready.load(1)
    assert not ready.engine.is_asleep
    assert sorted(await waiting) == [0, 1]

    await sleep()
    await ready.stub.Wake(pb.WakeRequest(), timeout=TIMEOUT_S)
    assert not ready.engine.is_asleep and ready.engine.unpaused.is_set()

    await sleep()
    await ready.stub.ScoreTokens(pb.ScoreTokensRequest(token_ids=int32_to_wire(PROMPT)), timeout=TIMEOUT_S)
    assert not ready.engine.is_asleep


async def test_an_engine_that_was_paused_before_it_slept_is_paused_when_it_wakes(ready: Generator) -> None:
    await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
    await ready.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
    await ready.stub.Wake(pb.WakeRequest(), timeout=TIMEOUT_S)
    assert not ready.engine.is_asleep and not ready.engine.unpaused.is_set()
    await ready.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
    await ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)
    assert not ready.engine.is_asleep and ready.engine.unpaused.is_set()


async def test_an_engine_does_not_sleep_while_it_loads(ready: Generator) -> None:
    await ready.held_load()
    with pytest.raises(FailedPrecondition) as caught:
        await ready.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
    assert caught.value.reason == "LOAD_UNDER_WAY"
    ready.engine.load_gate.set()


async def test_a_pause_that_begins_while_the_canary_is_scored_stays(ready: Generator) -> None:
    engine = ready.engine
    engine.score_gate = asyncio.Event()
    engine.is_scoring.clear()
    load = asyncio.create_task(ready.load(1))
    await asyncio.wait_for(engine.is_scoring.wait(), TIMEOUT_S)
    await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
    engine.score_gate.set()
    assert len(await load) == 2
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_PAUSED
    assert not engine.unpaused.is_set(), "it reports PAUSED, and samples"
    await ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)
    assert engine.unpaused.is_set()


async def test_scoring_during_a_pause_waits_for_a_load(ready: Generator) -> None:
    engine = ready.engine
    engine.load_gate = asyncio.Event()
    await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
    loading = ready.loading(1)
    assert (await loading.read()).stage == pb.LOAD_STAGE_READY
    engine.is_scoring.clear()
    request = pb.ScoreTokensRequest(token_ids=int32_to_wire(PROMPT))
    score = asyncio.ensure_future(ready.stub.ScoreTokens(request, timeout=TIMEOUT_S))
    await ready.status()
    assert not engine.unpaused.is_set(), "it samples during a load"
    engine.load_gate.set()
    assert (await loading.read()).stage == pb.LOAD_STAGE_DONE
    assert float32_from_wire((await score).logprobs, "logprobs").tolist() == [-1.0, -1.0]
    assert not engine.unpaused.is_set()


async def test_tokens_are_scored_under_the_current_weights(ready: Generator) -> None:
    await ready.load(2)
    response = await ready.stub.ScoreTokens(pb.ScoreTokensRequest(token_ids=int32_to_wire(PROMPT)), timeout=TIMEOUT_S)
    assert float32_from_wire(response.logprobs, "logprobs").tolist() == [-2.0, -2.0]
    assert response.version.policy_version == 2


@pytest.mark.parametrize("num_tokens", [1, 17])
async def test_too_few_or_too_many_tokens_are_not_scored(ready: Generator, num_tokens: int) -> None:
    request = pb.ScoreTokensRequest(token_ids=int32_to_wire(np.zeros(num_tokens, dtype=np.int32)))
    with pytest.raises(InvalidArgument, match="2 to 16 tokens"):
        await ready.stub.ScoreTokens(request, timeout=TIMEOUT_S)


async def test_without_a_configuration_only_get_status_and_leave_weight_group_work(idle: Generator) -> None:
    calls: list[Awaitable[Any]] = [
        idle.sample(),
        idle.join(),
        idle.load(),
        idle.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S),
        idle.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S),
        idle.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S),
        idle.stub.Wake(pb.WakeRequest(), timeout=TIMEOUT_S),
        idle.stub.ScoreTokens(pb.ScoreTokensRequest(token_ids=int32_to_wire(PROMPT)), timeout=TIMEOUT_S),
    ]
    for call in calls:
        with pytest.raises(FailedPrecondition, match="IDLE") as caught:
            await call
        assert caught.value.reason == "NOT_READY"
    await idle.stub.LeaveWeightGroup(pb.LeaveWeightGroupRequest(), timeout=TIMEOUT_S)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that the process sends itself, which do not arrive."""
    sent: list[int] = []
    monkeypatch.setattr("shoal.worker.lifecycle.os.kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr("services.generator.engine_loader.threading.Timer.start", lambda timer: None)
    return sent


async def test_a_dead_engine_ends_the_process_with_its_reason(ready: Generator, signals: list[int]) -> None:
    waiting = await ready.held_sample()
    ready.engine.death.set_result("exit code 9")
    with pytest.raises(Aborted, match="died"):
        await waiting
    status = await ready.reach(worker_pb2.WORKER_STATE_FAILED)
    assert "exit code 9" in status.message
    assert signals == [15]


async def test_the_process_ends_when_its_engine_dies_while_it_starts(idle: Generator, signals: list[int]) -> None:
    idle.starting.append(Unavailable("a process of vLLM's engine ended", reason=ErrorReason.ENGINE_DEAD))
    await idle.configure()
    status = await idle.reach(worker_pb2.WORKER_STATE_FAILED)
    assert status.message == "a process of vLLM's engine ended"
    assert signals == [15], "only a new process can start another engine"
