"""Batches of a generator: begun whole, alone and in order, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from services.generator.batches import BatchPlace
from services.generator.group import GroupRequest
from services.generator.requests import Requests
from shoal.errors import Aborted, InvalidArgument
from shoal.rollout import Completion, SamplingParams
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import settled


class Log(ScriptedEngine):
    """Logs pauses, and the seeds in the order in which their sampling begins."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[object] = []

    async def sample(self, prompt_token_ids: object, sampling: object, seed: int, *reports: object) -> object:  # type: ignore[override]
        self.log.append(seed)
        return await super().sample(prompt_token_ids, sampling, seed, *reports)  # type: ignore[arg-type]

    async def while_paused(self, work: Callable[[], Awaitable[None]]) -> None:
        self.log.append("pause")
        await self.pause(clear_cache=True)
        await work()
        self.log.append("resume")
        await self.resume()


def request(name: str, *seeds: int, place: BatchPlace | None) -> GroupRequest:
    return GroupRequest(name, np.array([1], dtype=np.int32), SamplingParams(1.0, 2, ()), seeds, place)


def reading(requests: Requests, name: str, *seeds: int, place: BatchPlace | None) -> "asyncio.Task[list[Completion]]":
    async def read() -> list[Completion]:
        updates = [update async for update in requests.stream(request(name, *seeds, place=place))]
        return [completion for update in updates for completion in update.completions]

    return asyncio.create_task(read())


async def test_the_groups_of_a_batch_begin_together_in_order_whenever_they_arrive() -> None:
    engine = Log()
    requests = Requests(engine, capacity=8, while_paused=engine.while_paused)
    tasks = [
        reading(requests, "c", 5, 6, place=BatchPlace("b", 2, 3)),
        reading(requests, "a", 1, 2, place=BatchPlace("b", 0, 3)),
    ]
    await settled()
    assert engine.log == [], "it began without all groups"
    tasks.append(reading(requests, "b", 3, 4, place=BatchPlace("b", 1, 3)))
    assert [len(found) for found in await asyncio.gather(*tasks)] == [2, 2, 2]
    assert engine.log == ["pause", 1, 2, 3, 4, 5, 6, "resume"]


async def test_a_batch_begins_when_the_engine_samples_nothing_else() -> None:
    engine = Log()
    engine.sample_gate = asyncio.Event()
    requests = Requests(engine, capacity=8, while_paused=engine.while_paused)
    before = reading(requests, "before", 9, place=None)
    await settled()
    batch = reading(requests, "a", 1, place=BatchPlace("b", 0, 1))
    await settled()
    assert engine.log == [9]
    engine.sample_gate.set()
    await asyncio.gather(before, batch)
    assert engine.log == [9, "pause", 1, "resume"]


async def test_a_batch_of_which_a_group_is_canceled_ends_for_all_and_leaves_the_engine_before_the_next() -> None:
    engine = Log()
    engine.sample_gate = asyncio.Event()
    requests = Requests(engine, capacity=8, while_paused=engine.while_paused)
    first, second = (
        reading(requests, name, seed, place=BatchPlace("b", seed, 2)) for name, seed in (("a", 0), ("b", 1))
    )
    await settled()
    first.cancel()
    with pytest.raises(Aborted, match="batch") as broken:
        await second
    assert broken.value.reason == "BATCH_BROKEN"
    engine.sample_gate.set()
    again = [
        reading(requests, f"{name}2", seed, place=BatchPlace("b2", seed, 2)) for name, seed in (("b", 1), ("a", 0))
    ]
    assert [len(found) for found in await asyncio.gather(*again)] == [1, 1]
    assert engine.aborted_samples == 2
    assert engine.log == ["pause", 0, 1, "resume", "pause", 0, 1, "resume"]


async def test_a_place_that_is_taken_is_refused() -> None:
    engine = Log()
    requests = Requests(engine, capacity=8, while_paused=engine.while_paused)
    waiting = reading(requests, "a", 1, place=BatchPlace("b", 0, 2))
    await settled()
    with pytest.raises(InvalidArgument, match="place 0 of batch 'b'"):
        await reading(requests, "other", 2, place=BatchPlace("b", 0, 2))
    with pytest.raises(InvalidArgument, match=r"batch\.num_groups.*must be 2"):
        await reading(requests, "other", 2, place=BatchPlace("b", 1, 3))
    await asyncio.gather(waiting, reading(requests, "z", 3, place=BatchPlace("b", 1, 2)))


async def test_a_batch_that_is_larger_than_the_queue_is_refused() -> None:
    engine = Log()
    requests = Requests(engine, capacity=2, while_paused=engine.while_paused)
    with pytest.raises(InvalidArgument, match=r"at most 2 .*given: 3"):
        await reading(requests, "a", 1, 2, 3, place=BatchPlace("b", 0, 1))
