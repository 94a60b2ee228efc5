"""GenerateGroup: repeats, aborts, refusals and back-pressure."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from services.coordinator.workers.generator_pool import Binding, GeneratorPool
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import WorkerRecord
from shoal.errors import (
    Aborted,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from shoal.rollout import Prompt, SamplingParams, VersionSpan, WeightVersion
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import rollout_pb2, worker_pb2
from shoal.wire import completion_from_wire, int32_to_wire, sampling_to_wire
from tests.support.generator_client import TIMEOUT_S, Generator, config


async def test_each_seed_gives_one_completion_with_the_results_of_the_engine(ready: Generator) -> None:
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


async def test_a_caller_that_disconnects_aborts_the_unfinished_completions_and_its_repeat_samples_only_those(
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
    with pytest.raises(InvalidArgument, match="request_id: "):
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


async def test_a_refusal_of_the_engine_is_an_invalid_argument(ready: Generator) -> None:
    ready.engine.sample_error = InvalidArgument("vLLM refuses the request: token 999 is not in the vocabulary")
    with pytest.raises(InvalidArgument, match="token 999"):
        await ready.sample()


async def test_the_error_for_a_full_queue_contains_a_delay(ready: Generator) -> None:
    ready.engine.sample_gate = asyncio.Event()
    waiting = asyncio.create_task(ready.sample(seeds=[1, 2, 3]))
    await ready.until(lambda status: status.load.num_running == 2)
    load = (await ready.status()).status.load
    assert (load.num_running, load.num_waiting, load.capacity) == (2, 1, 2)
    assert not load.HasField("kv_cache_use"), "the engine has computed nothing yet"
    ready.engine.kv_cache_use = 0.75
    assert (await ready.status()).status.load.kv_cache_use == 0.75
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


@pytest.mark.parametrize("size", [3, 700_000])
async def test_the_coordinator_gets_every_support_whole_whatever_its_size(ready: Generator, size: int) -> None:
    """700,000 tokens for each of 4 tokens are 11 MB: almost three messages."""
    ready.engine.support_tokens = size
    channel: Any = SimpleNamespace(get_state=lambda: grpc.ChannelConnectivity.READY)
    member = Member(WorkerRecord("g", worker_pb2.WORKER_KIND_GENERATOR, "g:1", 1, 0.0), channel, ready.stub)
    fleet: Any = None
    pool = GeneratorPool(fleet, max_num_seqs=8, wait_timeout_s=1, running_s=lambda: 0.0)
    prompt = Prompt("p", np.array([1, 2], dtype=np.int32), "", ())
    sampling = SamplingParams(1.0, 4, (), top_k=20, return_support=True)

    stream = pool.sample(
        Binding(member, 2, lambda: None),
        prompt,
        GroupProgress([10, 20]),
        sampling,
        request_id="r",
        timeout_s=TIMEOUT_S,
    )
    completions = {completion.seed: completion async for completion in stream}
    for seed in (10, 20):
        support = completions[seed].support
        assert support is not None and support.counts.tolist() == [size] * 4
        assert support.token_ids[::size].tolist() == list(range(seed, seed + 4))
        assert len(support.token_ids) == 4 * size and support.token_ids[-1] == seed + 3 + size - 1


async def test_a_support_is_returned_only_where_it_is_asked_for_and_needs_a_top_k(ready: Generator) -> None:
    plain = [message.completion async for message in ready.sampling()]
    assert not any(completion.support_token_ids or completion.support_counts for completion in plain)
    unbounded = sampling_to_wire(SamplingParams(1.0, 4, (), return_support=True))
    with pytest.raises(InvalidArgument, match=r"sampling\.return_support: .*top_k"):
        await ready.sample(request_id="other", sampling=unbounded)


async def test_the_begin_of_sampling_is_reported_once_and_only_if_it_is_asked_for(ready: Generator) -> None:
    ready.engine.sample_gate = asyncio.Event()
    asked, repeat = (aiter(ready.sampling(report_begin=True)) for _ in range(2))
    first = await anext(asked)
    assert first.has_begun and not first.HasField("completion"), first
    assert (await anext(repeat)).has_begun, "a repeat is told what has happened before"
    plain = aiter(ready.sampling())
    ready.engine.sample_gate.set()
    for call in (asked, repeat, plain):
        messages = [message async for message in call]
        assert [message.has_begun for message in messages] == [False, False], messages
