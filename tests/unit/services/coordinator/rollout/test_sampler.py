"""The completions that a run waits for are a metric, which generators are scaled by."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest

from services.coordinator.rollout import completions as module
from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from services.coordinator.rollout.completions import CompletionSampler
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import DropReason
from services.coordinator.rollout.pause import Pause
from services.coordinator.rollout.rollout_parts import RolloutParts, training_sampling
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.workers import lost_work
from services.coordinator.workers.deadlines import Pace
from services.coordinator.workers.group_progress import GroupProgress, whole_prefix
from services.coordinator.workers.lost_work import WorkFailed
from shoal.config import parse_config
from shoal.config.live import LiveConfig
from shoal.rollout import Completion, EnvironmentTask, FinishReason, Prompt, VersionSpan, WeightVersion
from shoal.token_run import TokenRun
from tests.support.waiting import settled

GROUP_SIZE = 3
PROMPT = Prompt("p", np.array([1], dtype=np.int32), "text", ())
OLD, NEW = WeightVersion(0, 3), WeightVersion(0, 4)
VALUES = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}, "grpo": {"group_size": GROUP_SIZE}}


class Generators:
    """A generator that waits before each completion, and is lost once after the first."""

    def __init__(self) -> None:
        self.is_free, self.may_go_on = asyncio.Event(), asyncio.Semaphore(0)
        self.num_calls = 0
        self.pace = Pace()

    @asynccontextmanager
    async def room(self, num_completions: int, *, priority: int, seat: Any) -> AsyncIterator[Any]:
        await self.is_free.wait()
        yield SimpleNamespace(member=SimpleNamespace(record=SimpleNamespace(worker_id="g"), name="generator-1"))

    async def sample(
        self, binding: Any, prompt: Prompt, progress: GroupProgress, *_: Any, **__: Any
    ) -> AsyncIterator[Completion]:
        self.num_calls += 1
        for index in progress.missing:
            await self.may_go_on.acquire()
            if self.num_calls == 1 and index == 1:
                raise WorkFailed(binding.member.name, "it is gone", is_loss=False)
            tokens = np.array([5], np.int32)
            completion = Completion(index, tokens, np.zeros(1, np.float32), FinishReason.STOP, (), seed=7)
            progress.finish(completion)
            yield completion


def make_sampler(
    generators: Any, *, rewards: Any = None, episodes: Any = None, version: WeightVersion = OLD, **sections: Any
) -> Sampler:
    config, pause = parse_config(VALUES | sections), Pause()
    live, tokenizer = LiveConfig(config), SimpleNamespace(added_tokens_decoder={}, decode=str)
    parts = RolloutParts(
        live,
        pause,
        generators,
        CompletionSampler(live, pause, generators, tokenizer),
        episodes,
        rewards or SimpleNamespace(score=AsyncMock(return_value=[])),
        training_sampling(config, ()),
    )
    events = MagicMock()
    return Sampler(
        parts,
        "run",
        CurrentVersion(version),
        SamplingGate(inflight_updates=config.weights.inflight_updates),
        breaker=CircuitBreaker(config.reward, events, AsyncMock(), resume_command="resume"),
        ledger=AsyncMock(),
        events=events,
    )


async def test_the_metric_of_completions_to_wait_for_follows_them_also_while_none_samples_and_when_one_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(module, "_SAMPLING", SimpleNamespace(set=shown.put_nowait))
    generators: Any = Generators()
    sampler = make_sampler(generators)
    running = asyncio.create_task(sampler.run_group(0, 0, PROMPT))
    assert await shown.get() == GROUP_SIZE, "a group that waits for a generator counts"
    generators.is_free.set()
    generators.may_go_on.release()
    assert await shown.get() == 2
    generators.may_go_on.release()  # It is lost: nothing is owed until the group is issued again, without what came.
    assert [await shown.get(), await shown.get()] == [0, 2]
    for left in (1, 0):
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

    async def score(group_id: str, prompt: Prompt, sampled: Any, *_: Any, **__: Any) -> list[Any]:
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


async def test_episodes_are_scored_when_the_last_of_their_group_is_over() -> None:
    """One may take longer than the call that scores the group may."""
    may_end, scored = asyncio.Event(), asyncio.Event()

    async def play(request: Any, awaits: Any) -> None:
        for index in request.progress.missing:
            if index:
                await may_end.wait()
            completion = Completion(
                index, np.zeros(1, np.int32), np.zeros(1, np.float32), FinishReason.STOP, (), seed=7
            )
            request.progress.finish(completion)
            request.sampled.add(completion)

    async def score(*_: Any, **__: Any) -> list[Any]:
        scored.set()
        return []

    episodes = SimpleNamespace(sample=play)
    sampler = make_sampler(Generators(), rewards=SimpleNamespace(score=score), episodes=episodes)
    running = asyncio.create_task(sampler.run_group(0, 0, replace(PROMPT, environment=EnvironmentTask("game", {}))))
    await settled()
    assert not scored.is_set()
    may_end.set()
    group = await running
    assert scored.is_set() and len(group.completions) == GROUP_SIZE


class KilledGenerators(Generators):
    """Generators that are killed one after the other, when each completion has so many more tokens."""

    def __init__(self, *more: Sequence[int]) -> None:
        """`more`: for each kill, the tokens that each completion of the group gets before it."""
        super().__init__()
        self.is_free.set()
        self.more = more
        self.kept: list[int] = []
        """Tokens that each call goes on behind."""

    async def sample(
        self, binding: Any, prompt: Prompt, progress: GroupProgress, *_: Any, **__: Any
    ) -> AsyncIterator[Completion]:
        self.kept.append(sum(map(len, progress.begin_call(whole_prefix, 1000).values())))
        self.num_calls += 1
        for index in progress.missing:
            if self.num_calls > len(self.more):
                completion = Completion(
                    index, np.array([5], np.int32), np.zeros(1, np.float32), FinishReason.STOP, (), seed=7
                )
                progress.finish(completion)
                yield completion
            elif count := self.more[self.num_calls - 1][index]:
                run = TokenRun(np.ones(count, np.int32), np.zeros(count, np.float32), (VersionSpan(OLD, 0, count),))
                progress.report(index, 0, run)
        if progress.missing:
            raise WorkFailed(binding.member.name, "it was killed")


@pytest.mark.parametrize(
    ("more", "num_calls", "drop_reason"),
    [
        ([(9, 9, 9)] * 7, 8, None),
        ([(9, 5, 9)] + [(9, 0, 9)] * 7, 2, DropReason.LOST),
        ([(0, 0, 0)] * 7, 2, DropReason.LOST),
        ([(9, 9, 0), (9, 9, 1), (9, 9, 0), (9, 9, 1)], 3, DropReason.LOST),
    ],
    ids=["at random", "at the token 5 of one completion", "at once", "before the last one begins, and soon after"],
)
async def test_a_group_is_dropped_after_losses_at_the_same_tokens_and_not_after_kills_at_random(
    monkeypatch: pytest.MonkeyPatch, more: list[Sequence[int]], num_calls: int, drop_reason: DropReason | None
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.0)
    generators = KilledGenerators(*more)
    group = await make_sampler(generators, coordinator={"max_group_losses": 2}).run_group(0, 0, PROMPT)
    assert (generators.num_calls, group.drop_reason) == (num_calls, drop_reason)


@pytest.mark.parametrize(
    ("version", "sections", "is_kept"),
    [
        (OLD, {}, True),
        (NEW, {}, True),
        (OLD, {"weights": {"inflight_updates": False}}, True),
        (NEW, {"weights": {"inflight_updates": False}}, False),
        (OLD, {"generator": {"report_every_tokens": 0}}, False),
    ],
    ids=["same version", "another version", "same, not in flight", "another, not in flight", "no reports"],
)
async def test_what_was_delivered_of_a_group_is_kept_unless_the_run_needs_it_whole(
    monkeypatch: pytest.MonkeyPatch, version: WeightVersion, sections: dict[str, Any], is_kept: bool
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.0)
    generators = KilledGenerators((1, 1, 1))
    await make_sampler(generators, version=version, **sections).run_group(0, 0, PROMPT)
    assert generators.kept == [0, 3 * is_kept]
