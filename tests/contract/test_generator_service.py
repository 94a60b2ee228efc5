"""GeneratorService over real gRPC, with an engine that follows a script."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct

from services.generator.engine import LoadReport, Sample
from services.generator.service import GeneratorServicer
from shoal.config.load import config_struct, parse_config
from shoal.errors import (
    Aborted,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rollout import FinishReason, Float32Array, SamplingParams, VersionSpan, WeightVersion
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import rollout_pb2, weights_pb2, worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.wire import completion_from_wire, float32_from_wire, int32_to_wire, invalid, sampling_to_wire
from shoal.worker.renewal import Renewal
from tests.no_program import NoProgram
from tests.serving import GENERATOR, serving

MANIFEST = Manifest((TensorSpec("w", "float32", (2,)),))
PROMPT = np.array([1, 2, 3], dtype=np.int32)
TIMEOUT_S = 20.0


class ScriptedEngine:
    """Samples tokens that follow from the seed, and does the rest as it is told."""

    num_weight_ranks = 2
    max_model_len = 16
    vocab_size = 50

    def __init__(self) -> None:
        self.version = WeightVersion(0, 0)
        self.is_asleep = False
        self.unpaused = asyncio.Event()
        self.unpaused.set()
        self.num_sampled = 0
        self.asked: list[SamplingParams] = []
        self.aborted_samples = 0
        self.sample_gate: asyncio.Event | None = None
        self.sample_error: ShoalError | None = None
        self.score_gate: asyncio.Event | None = None
        self.is_scoring = asyncio.Event()
        self.join_gate: asyncio.Event | None = None
        self.load_gate: asyncio.Event | None = None
        self.load_error: ShoalError | None = None
        self.group_aborts: list[str] = []
        self.pauses: list[bool] = []
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def sample(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> Sample:
        self.num_sampled += 1
        self.asked.append(sampling)
        try:
            if self.sample_gate is not None:
                await self.sample_gate.wait()
            await self.unpaused.wait()
        except asyncio.CancelledError:
            self.aborted_samples += 1
            raise
        if self.sample_error is not None:
            raise self.sample_error
        count = sampling.max_completion_tokens
        return Sample(
            token_ids=np.arange(seed, seed + count, dtype=np.int32),
            logprobs=np.full(count, -0.5, dtype=np.float32),
            finish_reason=FinishReason.LENGTH,
            version_spans=(VersionSpan(self.version, 0, count),),
        )

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        await self.unpaused.wait()
        self.is_scoring.set()
        if self.score_gate is not None:
            await self.score_gate.wait()
        return np.full(len(token_ids) - 1, -float(self.version.policy_version), dtype=np.float32)

    async def abort_all(self) -> None:
        pass

    async def pause(self, *, clear_cache: bool) -> None:
        self.pauses.append(clear_cache)
        self.unpaused.clear()

    async def resume(self) -> None:
        self.unpaused.set()

    async def sleep(self) -> None:
        self.is_asleep = True
        self.unpaused.clear()

    async def wake(self) -> None:
        self.is_asleep = False
        self.unpaused.set()

    async def check_manifest(self, manifest: Manifest) -> None:
        if manifest != MANIFEST:
            raise invalid("manifest.tensors", "the model has no such tensor")

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        await self._wait_in_group(self.join_gate)

    async def abort_group(self, reason: str) -> None:
        self.group_aborts.append(reason)

    async def leave_group(self) -> None:
        pass

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        assert not self.unpaused.is_set(), "loading while sampling kills the engine"
        on_ready()
        await self._wait_in_group(self.load_gate)
        assert not self.unpaused.is_set(), "loading while sampling kills the engine"
        if self.load_error is not None:
            raise self.load_error
        self.version = version
        return LoadReport((TensorHash("w", "abc"),), receive_s=0.1, load_s=0.2)

    async def _wait_in_group(self, gate: asyncio.Event | None) -> None:
        num_aborts = len(self.group_aborts)
        while gate is not None and not gate.is_set():
            if len(self.group_aborts) > num_aborts:
                raise Unavailable(f"given up: {self.group_aborts[-1]}")
            await asyncio.sleep(0.01)

    async def died(self) -> str:
        return await asyncio.shield(self.death)

    async def close(self) -> None:
        self.closed = True


class Generator:
    """A served generator with its scripted engine."""

    def __init__(
        self,
        stub: Any,
        engines: list[ScriptedEngine],
        starting: list[Awaitable[None] | Exception],
        ends: asyncio.Event,
    ) -> None:
        self.stub = stub
        self.ends = ends
        """Set where the process would get SIGTERM, to start over."""
        self.engines = engines
        self.starting = starting
        """What the next start of an engine waits for, or fails with."""

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[-1]

    async def configure(self, run_id: str = "run", **changes: Any) -> worker_pb2.WorkerStatus:
        request = pb.GeneratorServiceConfigureRequest(run_id=run_id, config=config(**changes))
        status: worker_pb2.WorkerStatus = (await self.stub.Configure(request, timeout=TIMEOUT_S)).status
        return status

    async def status(self) -> pb.GeneratorServiceGetStatusResponse:
        return await self.stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=TIMEOUT_S)

    async def reach(self, state: worker_pb2.WorkerState.ValueType) -> worker_pb2.WorkerStatus:
        return await self.until(lambda status: status.state == state)

    async def until(self, is_so: Callable[[worker_pb2.WorkerStatus], bool]) -> worker_pb2.WorkerStatus:
        give_up = time.monotonic() + TIMEOUT_S
        while not is_so(status := (await self.status()).status):
            assert time.monotonic() < give_up, f"still {status}"
            await asyncio.sleep(0.01)
        return status

    async def join(self, epoch: int = 1, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "rendezvous": Rendezvous("run", epoch, "127.0.0.1", 1, 3, "gloo", 10).to_wire(),
            "rank_offset": 1,
            "manifest": MANIFEST.to_wire(),
        }
        await self.stub.JoinWeightGroup(pb.JoinWeightGroupRequest(**(fields | changes)), timeout=TIMEOUT_S)

    async def load(self, policy_version: int = 0, *, attempt: int = 0, epoch: int = 1) -> list[pb.LoadWeightsResponse]:
        return [response async for response in self.loading(policy_version, attempt=attempt, epoch=epoch)]

    def loading(self, policy_version: int = 0, *, attempt: int = 0, epoch: int = 1) -> Any:
        version = rollout_pb2.WeightVersion(attempt=attempt, policy_version=policy_version)
        canary = weights_pb2.Canary(token_ids=int32_to_wire(PROMPT))
        request = pb.LoadWeightsRequest(epoch=epoch, version=version, canary=canary)
        return self.stub.LoadWeights(request, timeout=TIMEOUT_S)

    async def sample(self, **changes: Any) -> list[int]:
        """Samples a group; the sample indexes in order of arrival."""
        return [message.completion.sample_index async for message in self.sampling(**changes)]

    def sampling(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "request_id": "request",
            "prompt_token_ids": int32_to_wire(PROMPT),
            "sampling": sampling_to_wire(SamplingParams(1.0, 4, ())),
            "seeds": [10, 20],
        }
        return self.stub.GenerateGroup(pb.GenerateGroupRequest(**(fields | changes)), timeout=TIMEOUT_S)


def config(**generator: Any) -> Struct:
    values = {
        "model": {"path": "tiny"},
        "data": {"sources": [{"path": "questions.jsonl"}]},
        "grpo": {"group_size": 2},
        "generator": {"max_num_seqs": 2, "max_queued_requests": 2} | generator,
    }
    return config_struct(parse_config(values))


@pytest.fixture
async def idle() -> AsyncIterator[Generator]:
    engines: list[ScriptedEngine] = []
    starting: list[Awaitable[None] | Exception] = []

    async def start(_: Any) -> ScriptedEngine:
        if starting:
            first = starting.pop(0)
            if isinstance(first, Exception):
                raise first
            await first
        engines.append(ScriptedEngine())
        return engines[-1]

    ends = asyncio.Event()
    servicer = GeneratorServicer(start, Renewal(NoProgram(), end=ends.set))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(servicer, GENERATOR))
        channel = await stack.enter_async_context(connect(address, GENERATOR))
        stack.push_async_callback(servicer.close)
        yield Generator(GeneratorServiceStub(channel), engines, starting, ends)


@pytest.fixture
async def stale(idle: Generator) -> Generator:
    await idle.configure()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    return idle


@pytest.fixture
async def ready(stale: Generator) -> Generator:
    await stale.join()
    await stale.load(0)
    return stale


# Configure


async def test_a_generator_is_loading_while_its_engine_starts_and_stale_until_it_has_weights(idle: Generator) -> None:
    started = asyncio.Event()
    idle.starting.append(asyncio.ensure_future(started.wait()))  # type: ignore[arg-type]
    assert (await idle.status()).status.state == worker_pb2.WORKER_STATE_IDLE
    assert (await idle.configure()).state == worker_pb2.WORKER_STATE_LOADING
    with pytest.raises(FailedPrecondition, match="LOADING"):
        await idle.sample()
    started.set()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    with pytest.raises(FailedPrecondition, match="no weights were published"):
        await idle.sample()


async def test_the_same_configuration_again_changes_nothing(ready: Generator) -> None:
    assert (await ready.configure()).state == worker_pb2.WORKER_STATE_READY
    assert len(ready.engines) == 1


async def test_a_configuration_that_does_not_validate_names_its_fields(idle: Generator) -> None:
    broken = config()
    broken["generator"]["max_num_seqs"] = 0  # type: ignore[index]
    with pytest.raises(InvalidArgument) as error:
        await idle.stub.Configure(pb.GeneratorServiceConfigureRequest(run_id="run", config=broken), timeout=TIMEOUT_S)
    assert error.value.violations[0].field == "generator.max_num_seqs"


async def test_for_another_engine_the_process_starts_over_and_says_so_to_everybody_until_it_does(
    ready: Generator,
) -> None:
    for run_id, changes in (("other", {"max_num_seqs": 3}), ("other", {"max_num_seqs": 3}), ("run", {})):
        with pytest.raises(Unavailable, match="holds the engine of run run, whose") as caught:
            await ready.configure(run_id, **changes)
        assert caught.value.reason == "STARTING_OVER"
        assert caught.value.retry_after_s is not None and 5 <= caught.value.retry_after_s <= 60
    assert ready.ends.is_set()


async def test_another_run_takes_the_engine_over_without_its_weights(ready: Generator) -> None:
    await ready.configure("other")
    status = await ready.reach(worker_pb2.WORKER_STATE_STALE)
    assert status.run_id == "other"
    assert not (await ready.status()).HasField("version")
    assert len(ready.engines) == 1


async def test_an_engine_that_does_not_start_is_a_failure_with_its_reason_and_may_be_tried_again(
    idle: Generator,
) -> None:
    idle.starting.append(InvalidArgument("model.path: there is no folder tiny"))
    await idle.configure()
    status = await idle.reach(worker_pb2.WORKER_STATE_FAILED)
    assert status.message == "model.path: there is no folder tiny"
    await idle.configure()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)


# GenerateGroup


async def test_each_seed_gives_one_completion_with_what_the_engine_said(ready: Generator) -> None:
    completions = [completion_from_wire(message.completion) async for message in ready.sampling()]
    assert {(c.sample_index, c.seed, tuple(c.token_ids)) for c in completions} == {
        (0, 10, (10, 11, 12, 13)),
        (1, 20, (20, 21, 22, 23)),
    }
    assert all(c.behavior_logprobs.tolist() == [-0.5] * 4 for c in completions)
    assert all(c.version_spans == (VersionSpan(WeightVersion(0, 0), 0, 4),) for c in completions)
    assert (await ready.status()).num_sampled_tokens == 8


async def test_a_repeat_of_a_finished_request_is_answered_without_sampling(ready: Generator) -> None:
    assert await ready.sample() == await ready.sample()
    assert ready.engine.num_sampled == 2


async def test_a_repeat_of_a_running_request_joins_it(ready: Generator) -> None:
    ready.engine.sample_gate = asyncio.Event()
    first, second = asyncio.create_task(ready.sample()), asyncio.create_task(ready.sample())
    await ready.until(lambda status: status.load.num_running == 2)
    await asyncio.sleep(0.1)
    ready.engine.sample_gate.set()
    assert await first == await second
    assert ready.engine.num_sampled == 2


async def test_a_caller_that_goes_away_aborts_what_is_not_finished_and_its_repeat_samples_only_that(
    ready: Generator,
) -> None:
    ready.engine.sample_gate = asyncio.Event()
    ready.engine.sample_gate.set()
    call = ready.sampling(seeds=[1])
    await call.read()
    ready.engine.sample_gate.clear()
    other = ready.sampling(request_id="other")
    reading = asyncio.create_task(other.read())
    await ready.until(lambda status: status.load.num_running == 2)
    other.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await ready.until(lambda status: status.load.num_running == 0)
    assert ready.engine.aborted_samples == 2
    ready.engine.sample_gate.set()
    assert await ready.sample(seeds=[1]) == [0]
    assert ready.engine.num_sampled == 3
    assert sorted(await ready.sample(request_id="other")) == [0, 1]
    assert ready.engine.num_sampled == 5


async def test_a_request_id_that_was_used_for_another_group_is_refused(ready: Generator) -> None:
    await ready.sample()
    with pytest.raises(InvalidArgument, match="was used for another"):
        await ready.sample(seeds=[30])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"prompt_token_ids": b""}, "prompt_token_ids"),
        ({"prompt_token_ids": b"abc"}, "prompt_token_ids"),
        ({"prompt_token_ids": int32_to_wire(np.array([1, 50], dtype=np.int32))}, "prompt_token_ids"),
        ({"prompt_token_ids": int32_to_wire(np.array([-1], dtype=np.int32))}, "prompt_token_ids"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [2**53]}, "seeds"),
        ({"sampling": sampling_to_wire(SamplingParams(1.0, 14, ()))}, "sampling.max_completion_tokens"),
        ({"sampling": rollout_pb2.SamplingParams()}, "sampling.top_p"),
        ({"sampling": sampling_to_wire(SamplingParams(1.0, 4, (), stop_strings=("",)))}, "sampling.stop_strings"),
    ],
)
async def test_a_bad_request_names_its_field(ready: Generator, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await ready.sample(**changes)
    assert error.value.violations[0].field == field


async def test_stop_strings_reach_the_engine_and_make_another_request(ready: Generator) -> None:
    stopping = SamplingParams(1.0, 4, (), stop_strings=("</answer>",))
    await ready.sample(sampling=sampling_to_wire(stopping))
    assert ready.engine.asked == [stopping] * 2
    with pytest.raises(InvalidArgument, match="was used for another"):
        await ready.sample()


async def test_an_engine_that_was_started_without_stop_strings_is_not_taken_over_by_a_run_with_some(
    ready: Generator,
) -> None:
    values = config()
    values.update({"sampling": {"stop_strings": ["</answer>"]}})
    with pytest.raises(Unavailable, match=r"sampling\.stop_strings"):
        await ready.stub.Configure(
            pb.GeneratorServiceConfigureRequest(run_id="other", config=values), timeout=TIMEOUT_S
        )


async def test_what_the_engine_refuses_is_an_invalid_argument(ready: Generator) -> None:
    ready.engine.sample_error = InvalidArgument("vLLM refuses the request: token 999 is not in the vocabulary")
    with pytest.raises(InvalidArgument, match="token 999"):
        await ready.sample()


async def test_a_full_queue_says_when_to_come_back(ready: Generator) -> None:
    ready.engine.sample_gate = asyncio.Event()
    waiting = asyncio.create_task(ready.sample(seeds=[1, 2, 3]))
    await ready.until(lambda status: status.load.num_running == 2)
    load = (await ready.status()).status.load
    assert (load.num_running, load.num_waiting, load.capacity) == (2, 1, 2)
    with pytest.raises(ResourceExhausted) as error:
        await ready.sample(request_id="other", seeds=[4, 5])
    assert error.value.retry_after_s == 1.0
    ready.engine.sample_gate.set()
    assert len(await waiting) == 3


async def test_a_request_that_the_engine_drops_has_to_be_sampled_again(ready: Generator) -> None:
    ready.engine.sample_error = Aborted("the engine dropped the request")
    with pytest.raises(Aborted):
        await ready.sample()
    ready.engine.sample_error = None
    assert sorted(await ready.sample()) == [0, 1]


# Weights


async def test_a_load_says_ready_then_done_and_the_generator_serves(stale: Generator) -> None:
    await stale.join()
    receiving, done = await stale.load(7)
    assert receiving.stage == pb.LOAD_STAGE_READY
    assert done.stage == pb.LOAD_STAGE_DONE
    assert [(item.name, item.xxh3) for item in done.hashes] == [("w", "abc")]
    assert float32_from_wire(done.canary.logprobs, "canary").tolist() == [-7.0, -7.0]
    assert done.pause_s > 0 and (done.receive_s, done.load_s) == (0.1, 0.2)
    status = await stale.status()
    assert status.status.state == worker_pb2.WORKER_STATE_READY
    assert (status.version.policy_version, status.epoch, status.num_weight_ranks) == (7, 1, 1)
    assert stale.engine.pauses == [True]


async def test_stale_cache_is_kept_only_when_asked_for(idle: Generator) -> None:
    await idle.configure(keep_stale_kv=True)
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    await idle.join()
    await idle.load()
    assert idle.engine.pauses == [False]


@pytest.mark.parametrize("error", [Unavailable("a peer went"), DeadlineExceeded("late"), DataLoss("other bytes")])
async def test_a_load_that_fails_leaves_the_generator_stale_and_paused_until_one_succeeds(
    ready: Generator, error: ShoalError
) -> None:
    ready.engine.load_error = error
    with pytest.raises(type(error), match=error.message):
        await ready.load(1)
    status = await ready.status()
    assert status.status.state == worker_pb2.WORKER_STATE_STALE and not status.HasField("version")
    assert error.message in status.status.message
    assert not ready.engine.unpaused.is_set()
    for call in (ready.sample(), ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)):
        with pytest.raises(FailedPrecondition, match="STALE"):
            await call
    ready.engine.load_error = None
    await ready.join(epoch=2)
    await ready.load(1, epoch=2)
    assert sorted(await ready.sample()) == [0, 1]


async def test_weights_of_a_higher_attempt_abort_what_is_in_flight(ready: Generator) -> None:
    await ready.load(5)
    ready.engine.sample_gate = asyncio.Event()
    waiting = asyncio.create_task(ready.sample())
    await ready.until(lambda status: status.load.num_running == 2)
    await ready.load(3, attempt=1)
    with pytest.raises(Aborted, match="restored"):
        await waiting


async def test_completions_in_flight_outlive_a_load_of_the_same_attempt(ready: Generator) -> None:
    ready.engine.sample_gate = asyncio.Event()
    waiting = asyncio.create_task(ready.sample())
    await ready.until(lambda status: status.load.num_running == 2)
    await ready.load(1)
    ready.engine.sample_gate.set()
    assert sorted(await waiting) == [0, 1]


async def test_a_load_in_another_epoch_is_refused(ready: Generator) -> None:
    with pytest.raises(FailedPrecondition, match="epoch 2"):
        await ready.load(1, epoch=2)


async def test_an_old_epoch_is_refused(ready: Generator) -> None:
    await ready.join(epoch=3)
    with pytest.raises(FailedPrecondition, match="epoch 2 is over"):
        await ready.join(epoch=2)


async def test_joining_again_returns_at_once(ready: Generator) -> None:
    ready.engine.join_gate = asyncio.Event()
    await ready.join()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rank_offset": 0}, "rank_offset"),
        ({"rank_offset": 2}, "rank_offset"),
        ({"manifest": Manifest((TensorSpec("v", "float32", (2,)),)).to_wire()}, "manifest.tensors"),
        ({"rendezvous": weights_pb2.WeightRendezvous(run_id="run")}, "rendezvous.store_host"),
    ],
)
async def test_a_bad_join_names_its_field(stale: Generator, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await stale.join(**changes)
    assert error.value.violations[0].field == field


async def test_a_newer_epoch_ends_a_join_that_waits_for_members(stale: Generator) -> None:
    stale.engine.join_gate = asyncio.Event()
    first = asyncio.create_task(stale.join(epoch=1))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(stale.join(epoch=2))
    with pytest.raises(Aborted, match="epoch 2 begins"):
        await first
    stale.engine.join_gate.set()
    await second
    assert (await stale.status()).epoch == 2


async def test_a_newer_epoch_ends_a_load_that_waits_for_its_sender(ready: Generator) -> None:
    ready.engine.load_gate = asyncio.Event()
    call = ready.loading(1)
    assert (await call.read()).stage == pb.LOAD_STAGE_READY
    status = await asyncio.wait_for(ready.status(), 1)
    assert status.status.state == worker_pb2.WORKER_STATE_READY
    with pytest.raises(FailedPrecondition, match="under way"):
        await ready.load(1)
    joining = asyncio.create_task(ready.join(epoch=2))
    with pytest.raises(Unavailable, match="epoch 2 begins"):
        await call.read()
    await joining
    ready.engine.load_gate.set()
    await ready.load(1, epoch=2)


async def test_a_caller_that_goes_away_gives_the_load_up(ready: Generator) -> None:
    ready.engine.load_gate = asyncio.Event()
    call = ready.loading(1)
    assert (await call.read()).stage == pb.LOAD_STAGE_READY
    call.cancel()
    await ready.reach(worker_pb2.WORKER_STATE_STALE)
    assert "went away" in ready.engine.group_aborts[-1]


async def test_leaving_the_group_is_repeatable(ready: Generator) -> None:
    for _ in range(2):
        await ready.stub.LeaveWeightGroup(pb.LeaveWeightGroupRequest(), timeout=TIMEOUT_S)
    assert not (await ready.status()).HasField("epoch")
    with pytest.raises(FailedPrecondition):
        await ready.load(1)


# Pause, resume, score, end


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


async def test_a_sleeping_engine_wakes_for_what_needs_it(ready: Generator) -> None:
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
    ready.engine.load_gate = asyncio.Event()
    call = ready.loading(1)
    assert (await call.read()).stage == pb.LOAD_STAGE_READY
    with pytest.raises(FailedPrecondition, match="a load is under way") as caught:
        await ready.stub.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
    assert caught.value.reason == "LOAD_UNDER_WAY"
    ready.engine.load_gate.set()


async def test_a_pause_that_comes_while_the_canary_is_scored_lasts(ready: Generator) -> None:
    engine = ready.engine
    engine.score_gate = asyncio.Event()
    engine.is_scoring.clear()
    load = asyncio.create_task(ready.load(1))
    await asyncio.wait_for(engine.is_scoring.wait(), TIMEOUT_S)
    await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
    engine.score_gate.set()
    assert len(await load) == 2
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_PAUSED
    assert not engine.unpaused.is_set(), "it says PAUSED, and samples"
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
    assert not engine.unpaused.is_set(), "sampling goes on under a load"
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


async def test_without_a_configuration_only_status_and_leaving_work(idle: Generator) -> None:
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
        with pytest.raises(FailedPrecondition, match="IDLE"):
            await call
    await idle.stub.LeaveWeightGroup(pb.LeaveWeightGroupRequest(), timeout=TIMEOUT_S)


async def test_a_dead_engine_ends_the_process_with_its_reason(
    ready: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr("services.generator.lifecycle.os.kill", lambda pid, number: signals.append(number))
    monkeypatch.setattr("services.generator.lifecycle.threading.Timer.start", lambda timer: None)
    ready.engine.sample_gate = asyncio.Event()
    waiting = asyncio.create_task(ready.sample())
    await ready.until(lambda status: status.load.num_running == 2)
    ready.engine.death.set_result("exit code 9")
    with pytest.raises(Aborted, match="died"):
        await waiting
    status = await ready.reach(worker_pb2.WORKER_STATE_FAILED)
    assert "exit code 9" in status.message
    assert signals == [15]


async def test_status_answers_while_an_engine_starts(idle: Generator) -> None:
    idle.starting.append(asyncio.ensure_future(asyncio.sleep(30)))
    await idle.configure()
    started = time.monotonic()
    await idle.stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=1)
    assert time.monotonic() - started < 1
