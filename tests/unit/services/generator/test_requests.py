"""Finished groups of a generator: how long they are kept; and its drain. For the rest see tests/contract/generator."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import cast

import numpy as np
import pytest

from services.generator.engine import Engine, Sample
from services.generator.group import GroupRequest, Update
from services.generator.requests import Requests
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, ShoalError, Unavailable
from shoal.rollout import Completion, FinishReason, SamplingParams
from shoal.token_run import TokenRun
from tests.support.waiting import settled


class CountingEngine:
    def __init__(self) -> None:
        self.num_sampled = 0

    async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int, *_: object) -> Sample:
        self.num_sampled += 1
        count = sampling.max_completion_tokens
        return Sample(zeros(count), FinishReason.LENGTH)


def zeros(count: int) -> TokenRun:
    return TokenRun(np.zeros(count, np.int32), np.zeros(count, np.float32), ())


async def completions(stream: AsyncIterator[Update]) -> AsyncIterator[Completion]:
    async for update in stream:
        for completion in update.completions:
            yield completion


async def at_once(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def request(request_id: str) -> GroupRequest:
    return GroupRequest(request_id, np.array([1], dtype=np.int32), SamplingParams(1.0, 100, ()), (1,))


async def test_the_oldest_finished_groups_are_deleted_for_newer_ones() -> None:
    engine = CountingEngine()
    # A completion of 100 tokens takes 800 bytes.
    requests = Requests(cast(Engine, engine), capacity=4, while_paused=at_once, max_kept_bytes=2000)
    for name in ("a", "b", "c"):
        assert [c.num_tokens async for c in completions(requests.stream(request(name)))] == [100]
    assert engine.num_sampled == 3
    for name in ("b", "c"):
        assert len([c async for c in completions(requests.stream(request(name)))]) == 1
    assert engine.num_sampled == 3, "kept groups were sampled again"
    assert len([c async for c in completions(requests.stream(request("a")))]) == 1
    assert engine.num_sampled == 4, "the oldest group was kept"


async def test_completions_that_finish_while_another_is_sent_are_sent_too() -> None:
    class TwoRounds(CountingEngine):
        """Finishes the first seed at once, and the others after the first was read."""

        def __init__(self) -> None:
            super().__init__()
            self.first_was_read = asyncio.Event()

        async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int, *_: object) -> Sample:
            if seed:
                await self.first_was_read.wait()
            return await super().sample(prompt_token_ids, sampling, seed)

    engine = TwoRounds()
    requests = Requests(cast(Engine, engine), capacity=8, while_paused=at_once)
    group = GroupRequest("slow", np.array([1], dtype=np.int32), SamplingParams(1.0, 2, ()), (0, 1, 2))
    received = []
    async for completion in completions(requests.stream(group)):
        received.append(completion.sample_index)
        engine.first_was_read.set()
        await settled()  # Lets the others finish, as with a slow connection.
    assert sorted(received) == [0, 1, 2], f"of 3 completions only {received} were sent"


class GatedEngine(CountingEngine):
    """Samples when the gate opens, and takes some time to abort."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int, *_: object) -> Sample:
        self.num_sampled += 1
        try:
            if seed:
                await self.gate.wait()
        except asyncio.CancelledError:
            await settled()
            raise
        return Sample(zeros(1), FinishReason.LENGTH)


async def test_a_repeat_during_the_abort_of_its_predecessor_is_sampled_once() -> None:
    engine = GatedEngine()
    requests = Requests(cast(Engine, engine), capacity=8, while_paused=at_once)
    group = GroupRequest("again", np.array([1], dtype=np.int32), SamplingParams(1.0, 1, ()), (0, 1, 2))
    async with aclosing(requests.stream(group)) as stream:
        assert (await anext(completions(stream))).sample_index == 0
    second = completions(requests.stream(group))
    assert (await anext(second)).sample_index == 0
    rest = asyncio.ensure_future(anext(second))
    await settled()
    await settled()
    assert requests.num_in_flight == 2, "completions in flight are not counted"
    engine.gate.set()
    assert sorted([(await rest).sample_index, (await anext(second)).sample_index]) == [1, 2]
    assert engine.num_sampled == 5


class Dropping(CountingEngine):
    """Samples three tokens of each completion, and the last one when the requests are dropped."""

    def __init__(self, *, ends_within_the_call: bool = True, error: ShoalError | None = None) -> None:
        super().__init__()
        self._dropped = asyncio.Event()
        self._ends_within_the_call = ends_within_the_call
        self._error = error

    async def sample(  # type: ignore[override]
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        _: int,
    ) -> Sample:
        on_tokens(zeros(1))
        on_tokens(zeros(2))
        await self._dropped.wait()
        on_tokens(zeros(1))
        raise Aborted("the engine dropped the request", reason=ErrorReason.REQUEST_DROPPED)

    async def abort_all(self) -> None:
        if self._error is not None:
            raise self._error
        self._dropped.set()
        if self._ends_within_the_call:
            await settled()


@pytest.mark.parametrize("ends_within_the_call", [False, True])
async def test_a_drain_hands_tokens_back_whether_requests_end_while_they_are_aborted_or_after_it(
    ends_within_the_call: bool,
) -> None:
    assert await tokens_handed_back(Dropping(ends_within_the_call=ends_within_the_call)) == [4, 4]


async def test_a_drain_hands_the_reported_tokens_back_when_the_engine_fails_in_it() -> None:
    assert await tokens_handed_back(Dropping(error=Unavailable("the engine has died"))) == [3, 3]


async def tokens_handed_back(engine: Dropping) -> list[int]:
    """Drains while two completions are sampled; returns how many tokens of each were handed back."""
    requests = Requests(cast(Engine, engine), capacity=8, while_paused=at_once)
    sampling = SamplingParams(1.0, 9, ())
    group = GroupRequest("a", np.array([1], dtype=np.int32), sampling, (0, 1), report_every_tokens=2)
    counts = Counter[int]()

    async def read() -> None:
        async for update in requests.stream(group):
            for index, start, run in update.parts:
                assert start == counts[index], f"a gap in sample {index}: {start} follows {counts[index]}"
                counts[index] += run.num_tokens

    reading = asyncio.create_task(read())
    await settled()
    with suppress(Unavailable):
        await asyncio.wait_for(requests.drain(0), 60)
    with pytest.raises(Aborted) as error:
        await asyncio.wait_for(reading, 60)
    assert error.value.reason == "SHUTTING_DOWN"
    return [counts[0], counts[1]]
