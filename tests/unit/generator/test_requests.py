"""What of the finished groups is kept, and for how long; the rest is in tests/contract/generator."""

import asyncio
from contextlib import aclosing
from typing import cast

import numpy as np

from services.generator.engine import Engine, Sample
from services.generator.requests import GroupRequest, Requests
from shoal.rollout import FinishReason, SamplingParams


class CountingEngine:
    def __init__(self) -> None:
        self.num_sampled = 0

    async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int) -> Sample:
        self.num_sampled += 1
        count = sampling.max_completion_tokens
        return Sample(np.zeros(count, np.int32), np.zeros(count, np.float32), FinishReason.LENGTH, ())


def request(request_id: str) -> GroupRequest:
    return GroupRequest(request_id, np.array([1], dtype=np.int32), SamplingParams(1.0, 100, ()), (1,))


async def test_the_oldest_finished_groups_make_room_for_newer_ones() -> None:
    engine = CountingEngine()
    # A completion of 100 tokens takes 800 bytes.
    requests = Requests(cast(Engine, engine), capacity=4, max_kept_bytes=2000)
    for name in ("a", "b", "c"):
        assert [c.num_tokens async for c in requests.stream(request(name))] == [100]
    assert engine.num_sampled == 3
    for name in ("b", "c"):
        assert len([c async for c in requests.stream(request(name))]) == 1
    assert engine.num_sampled == 3, "kept groups were sampled again"
    assert len([c async for c in requests.stream(request("a"))]) == 1
    assert engine.num_sampled == 4, "the oldest group was to be forgotten"


async def test_completions_that_finish_while_another_is_sent_are_sent_too() -> None:
    class TwoRounds(CountingEngine):
        """The first seed's completion is done at once, the others when the first has been read."""

        def __init__(self) -> None:
            super().__init__()
            self.first_was_read = asyncio.Event()

        async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int) -> Sample:
            if seed:
                await self.first_was_read.wait()
            return await super().sample(prompt_token_ids, sampling, seed)

    engine = TwoRounds()
    requests = Requests(cast(Engine, engine), capacity=8)
    group = GroupRequest("slow", np.array([1], dtype=np.int32), SamplingParams(1.0, 2, ()), (0, 1, 2))
    received = []
    async for completion in requests.stream(group):
        received.append(completion.sample_index)
        engine.first_was_read.set()
        # Long enough for the others to finish, as a slow connection is.
        for _ in range(5):
            await asyncio.sleep(0)
    assert sorted(received) == [0, 1, 2], f"of 3 completions only {received} were sent"


class GatedEngine(CountingEngine):
    """Samples when it is let, and takes its time to give a sample up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def sample(self, prompt_token_ids: list[int], sampling: SamplingParams, seed: int) -> Sample:
        self.num_sampled += 1
        try:
            if seed:
                await self.gate.wait()
        except asyncio.CancelledError:
            await a_little()
            raise
        return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), FinishReason.LENGTH, ())


async def a_little() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_repeat_that_comes_while_its_predecessor_is_given_up_is_sampled_once() -> None:
    engine = GatedEngine()
    requests = Requests(cast(Engine, engine), capacity=8)
    group = GroupRequest("again", np.array([1], dtype=np.int32), SamplingParams(1.0, 1, ()), (0, 1, 2))
    async with aclosing(requests.stream(group)) as first:
        assert (await anext(first)).sample_index == 0
    second = requests.stream(group)
    assert (await anext(second)).sample_index == 0
    rest = asyncio.ensure_future(anext(second))
    await a_little()
    await a_little()
    assert requests.num_in_flight == 2, "what is sampled is not counted"
    engine.gate.set()
    assert sorted([(await rest).sample_index, (await anext(second)).sample_index]) == [1, 2]
    assert engine.num_sampled == 5
