"""Finished groups of a generator: how long they are kept. For the rest see tests/contract/generator."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import cast

import numpy as np

from services.generator.engine import Engine, Sample
from services.generator.groups.group import GroupRequest, Update
from services.generator.requests import Requests
from shoal.rollout import Completion, FinishReason, SamplingParams
from shoal.token_run import TokenRun


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
        # Lets the others finish, as with a slow connection.
        for _ in range(5):
            await asyncio.sleep(0)
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
            await a_little()
            raise
        return Sample(zeros(1), FinishReason.LENGTH)


async def a_little() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_repeat_during_the_abort_of_its_predecessor_is_sampled_once() -> None:
    engine = GatedEngine()
    requests = Requests(cast(Engine, engine), capacity=8, while_paused=at_once)
    group = GroupRequest("again", np.array([1], dtype=np.int32), SamplingParams(1.0, 1, ()), (0, 1, 2))
    async with aclosing(requests.stream(group)) as stream:
        assert (await anext(completions(stream))).sample_index == 0
    second = completions(requests.stream(group))
    assert (await anext(second)).sample_index == 0
    rest = asyncio.ensure_future(anext(second))
    await a_little()
    await a_little()
    assert requests.num_in_flight == 2, "completions in flight are not counted"
    engine.gate.set()
    assert sorted([(await rest).sample_index, (await anext(second)).sample_index]) == [1, 2]
    assert engine.num_sampled == 5
