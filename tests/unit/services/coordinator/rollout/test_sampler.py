"""The completions that a run waits for are a metric, which generators are scaled by."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest

from services.coordinator.rollout import sampler as module
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.workers.losses import WorkFailed
from shoal.config import parse_config
from shoal.rollout import FinishReason, Prompt

GROUP_SIZE = 3
PROMPT = Prompt("p", np.array([1], dtype=np.int32), "text", ())
VALUES = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}, "grpo": {"group_size": GROUP_SIZE}}


class Generators:
    """A generator that waits before each completion, and is lost once after the first."""

    def __init__(self) -> None:
        self.is_free, self.may_go_on = asyncio.Event(), asyncio.Semaphore(0)
        self.num_calls = 0

    @asynccontextmanager
    async def room(self, num_completions: int, *, priority: int, seat: Any) -> AsyncIterator[Any]:
        await self.is_free.wait()
        yield SimpleNamespace(member=SimpleNamespace(record=SimpleNamespace(worker_id="g"), name="generator-1"))

    async def sample(self, binding: Any, prompt: Prompt, seeds: list[int], *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.num_calls += 1
        for index in range(len(seeds)):
            await self.may_go_on.acquire()
            if self.num_calls == 1 and index == 1:
                raise WorkFailed(binding.member.name, "it is gone", is_loss=False)
            yield SimpleNamespace(sample_index=index, finish_reason=FinishReason.STOP)


def make_sampler(generators: Any, *, rewards: Any = None, **sections: Any) -> Sampler:
    sampler = Sampler(
        parse_config(VALUES | sections),
        "run",
        MagicMock(policy_version=0),
        MagicMock(
            num_pauses=0,
            unpaused=AsyncMock(),
            sampling_for_training=lambda: nullcontext(),
        ),
        MagicMock(enter=AsyncMock(return_value=MagicMock())),
        generators=generators,
        rewards=rewards or MagicMock(score=AsyncMock(return_value=[])),
        breaker=MagicMock(rejects=AsyncMock(return_value=False)),
        ledger=AsyncMock(),
        events=MagicMock(),
        tokenizer=None,
        stop_token_ids=(),
    )
    sampler.with_text = AsyncMock(side_effect=lambda completion: completion)  # type: ignore[method-assign]
    return sampler


async def test_the_metric_of_completions_to_wait_for_follows_them_also_while_none_samples_and_when_one_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(module, "_SAMPLING", SimpleNamespace(set=shown.put_nowait))
    generators = Generators()
    sampler = make_sampler(generators)
    running = asyncio.create_task(sampler.run_group(0, 0, PROMPT))
    assert await shown.get() == GROUP_SIZE, "a group that waits for a generator counts"
    generators.is_free.set()
    generators.may_go_on.release()
    assert await shown.get() == 2
    generators.may_go_on.release()  # It is lost: nothing is owed until the group is issued again, whole.
    assert [await shown.get(), await shown.get()] == [0, GROUP_SIZE]
    for left in (2, 1, 0):
        generators.may_go_on.release()
        assert await shown.get() == left
    await running
    assert shown.get_nowait() == 0 and shown.empty()


async def test_a_group_of_a_batch_that_cannot_be_scored_is_scored_again_and_not_sampled() -> None:
    """The others of its batch are done: sampled alone, it would be another one."""
    generators = Generators()
    generators.num_calls = 1  # It is not lost.
    generators.is_free.set()
    for _ in range(2 * GROUP_SIZE):
        generators.may_go_on.release()
    scored: list[list[int]] = []

    async def score(group_id: str, prompt: Prompt, sampled: Any, **_: Any) -> list[Any]:
        scored.append([completion.sample_index async for completion in sampled.read()])
        if len(scored) == 1:
            raise WorkFailed("reward service", "it failed", is_loss=False)
        return []

    sampler = make_sampler(
        generators,
        rewards=SimpleNamespace(score=score),
        run={"deterministic": True, "num_threads": 1},
        grpo={"group_size": GROUP_SIZE, "max_staleness": 0},
        generator={"dtype": "float32"},
        learner={"compute_dtype": "float32"},
    )
    sampler.begin_round([0])
    group = await sampler.run_group(0, 0, PROMPT)
    assert scored == [[0, 1, 2], [0, 1, 2]] and len(group.completions) == GROUP_SIZE
    assert generators.num_calls == 2, "it was sampled again"
