"""Reports of unfinished completions, completions that go on from a prefix, and the drain of a generator."""

import asyncio
from typing import Any

import numpy as np
import pytest

from shoal.errors import Aborted, InvalidArgument
from shoal.grpo.seeds import continuation_seed
from shoal.rollout import SamplingParams
from shoal.v1 import generator_pb2 as pb
from shoal.wire import completion_from_wire, int32_to_wire, part_from_wire, prefixes_to_wire, sampling_to_wire
from tests.support.generator_client import PROMPT, TIMEOUT_S, Generator

SAMPLING = sampling_to_wire(SamplingParams(1.0, 12, ()))


def at_gate(generator: Generator, num_tokens: int) -> None:
    generator.engine.sample_gate = asyncio.Event()
    generator.engine.tokens_at_gate = num_tokens


async def parts_of(call: Any, wanted: dict[int, int]) -> list[pb.GenerateGroupResponse]:
    """Reads messages until so many tokens of each completion have arrived."""
    messages: list[pb.GenerateGroupResponse] = []
    while True:
        counts = dict.fromkeys(wanted, 0)
        for message in messages:
            for index, start, run in map(part_from_wire, message.parts):
                assert start == counts[index], f"a gap in sample {index}: {start} follows {counts[index]}"
                counts[index] += run.num_tokens
        if counts == wanted:
            return messages
        messages.append(await anext(call))


async def test_unfinished_completions_are_reported_together_each_n_tokens_and_finished_ones_stay_whole(
    ready: Generator,
) -> None:
    at_gate(ready, 7)
    call = aiter(ready.sampling(sampling=SAMPLING, report_every_tokens=3))
    messages = await parts_of(call, {0: 7, 1: 7})
    tokens = {10: [], 20: []}  # type: dict[int, list[int]]
    for message in messages:
        for index, _, run in map(part_from_wire, message.parts):
            tokens[(10, 20)[index]] += run.token_ids.tolist()
            assert run.logprobs.tolist() == [-0.5] * run.num_tokens
    assert tokens == {10: list(range(10, 17)), 20: list(range(20, 27))}
    assert (await ready.status()).num_sampled_tokens == 2 * 7
    assert ready.engine.sample_gate is not None
    ready.engine.sample_gate.set()
    rest = [message async for message in call]
    completions = [completion_from_wire(message.completion) for message in rest]
    assert {tuple(c.token_ids) for c in completions} == {tuple(range(10, 22)), tuple(range(20, 32))}
    assert (await ready.status()).num_sampled_tokens == 2 * 12, "a token was counted twice, or not at all"


async def test_nothing_is_reported_where_nobody_asks_and_fewer_than_n_tokens_are_no_report(ready: Generator) -> None:
    at_gate(ready, 7)
    calls = [ready.sampling(sampling=SAMPLING, request_id="a"), ready.sampling(request_id="b", report_every_tokens=50)]
    reading = [asyncio.create_task(_all(call)) for call in calls]
    await ready.until(lambda status: status.load.num_running == 2 and status.load.num_waiting == 2)
    assert ready.engine.sample_gate is not None
    ready.engine.sample_gate.set()
    for messages in await asyncio.gather(*reading):
        assert [len(message.parts) for message in messages] == [0, 0], messages


async def test_a_caller_that_joins_later_gets_all_tokens_from_the_first_on(ready: Generator) -> None:
    at_gate(ready, 7)
    first = aiter(ready.sampling(sampling=SAMPLING, report_every_tokens=3))
    await parts_of(first, {0: 7, 1: 7})
    await parts_of(aiter(ready.sampling(sampling=SAMPLING, report_every_tokens=3)), {0: 7, 1: 7})
    assert ready.engine.num_sampled == 2


async def test_a_prefix_is_gone_on_from_with_the_rest_of_the_limit_and_numbers_of_its_own(ready: Generator) -> None:
    prefix = np.array([31, 32, 33, 34, 35], dtype=np.int32)
    messages = await _all(ready.sampling(sampling=SAMPLING, prefixes=prefixes_to_wire({1: prefix})))
    completions = {c.sample_index: c for c in (completion_from_wire(message.completion) for message in messages)}
    assert {message.completion.sample_index: message.num_prefix_tokens for message in messages} == {0: 0, 1: 5}
    assert ready.engine.prompts == [PROMPT.tolist(), [*PROMPT.tolist(), *prefix.tolist()]]
    assert [asked.max_completion_tokens for asked in ready.engine.asked] == [12, 7]
    assert completions[0].token_ids.tolist() == list(range(10, 22))
    first = continuation_seed(20, 5) % 1000
    assert completions[1].token_ids.tolist() == list(range(first, first + 7)), "the tokens after the prefix alone"
    assert completions[1].seed == 20, "the completion keeps the name of its seed"
    with pytest.raises(InvalidArgument, match="request_id: "):
        await ready.sample(sampling=SAMPLING)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"report_every_tokens": -1}, "report_every_tokens"),
        ({"prefixes": [pb.CompletionPrefix(sample_index=2)]}, "prefixes[0].sample_index"),
        ({"prefixes": [pb.CompletionPrefix(token_ids=bytes(16))]}, "prefixes[0].token_ids"),
        (
            {"prefixes": [pb.CompletionPrefix(token_ids=int32_to_wire(np.array([50], dtype=np.int32)))]},
            "prefixes of sample 0",
        ),
    ],
)
async def test_a_bad_prefix_names_its_field(ready: Generator, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await ready.sample(**changes)
    assert error.value.violations[0].field == field


async def test_a_draining_generator_hands_back_every_token_and_takes_no_more_groups(ready: Generator) -> None:
    at_gate(ready, 8)
    call = aiter(ready.sampling(sampling=SAMPLING, report_every_tokens=3))
    plain = ready.sampling(sampling=SAMPLING, request_id="plain")
    plain_reading = asyncio.create_task(_all(plain))
    await parts_of(call, {0: 7, 1: 7})
    await ready.until(lambda status: status.load.num_waiting == 2)
    draining = asyncio.create_task(ready.servicer.drain(0.2))
    handed_back = await anext(call)
    assert {part.sample_index: part.start for part in handed_back.parts} == {0: 7, 1: 7}
    with pytest.raises(Aborted) as error:
        await _all(call)
    assert error.value.reason == "SHUTTING_DOWN"
    with pytest.raises(Aborted, match="shutting down"):
        await plain_reading
    await draining
    with pytest.raises(Aborted) as error:
        await ready.sample(request_id="late")
    assert error.value.reason == "SHUTTING_DOWN"


async def test_a_draining_generator_finishes_what_ends_in_time(ready: Generator) -> None:
    at_gate(ready, 3)
    call = aiter(ready.sampling(sampling=SAMPLING))
    reading = asyncio.create_task(_all(call))
    await ready.until(lambda status: status.load.num_running == 2)
    draining = asyncio.create_task(ready.servicer.drain(TIMEOUT_S))
    await ready.until(lambda status: True)
    assert ready.engine.sample_gate is not None
    ready.engine.sample_gate.set()
    assert len(await reading) == 2
    await draining


async def _all(call: Any) -> list[pb.GenerateGroupResponse]:
    return [message async for message in call]
