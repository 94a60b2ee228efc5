"""Generators that sample the turns of episodes by a function, without an engine."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from services.coordinator.rollout.completions import GroupRequest
from services.coordinator.rollout.episodes.episode_sampler import EpisodeSampler
from services.coordinator.rollout.episodes.stage import EpisodeParts, Stages
from services.coordinator.rollout.groups import SettledGroup
from services.coordinator.workers.deadlines import Pace
from services.coordinator.workers.group_progress import GroupProgress
from shoal.config import RunConfig
from shoal.config.live import LiveConfig
from shoal.rollout import (
    Completion,
    FinishReason,
    Prompt,
    SamplingParams,
    Support,
    VersionSpan,
    WeightVersion,
)
from shoal.token_run import TokenRun
from tests.support.tiny_model import IM_END, make_tokenizer

TOKENIZER = make_tokenizer()
END = TOKENIZER.convert_tokens_to_ids(IM_END)
Says = Callable[[int], str]


async def play_group(
    config: RunConfig, stages: Stages, prompt: Prompt, *, seeds: Sequence[int], return_support: bool, **scripted: Any
) -> list[Completion]:
    """Plays the episodes of a group with scripted parts of a run, and closes the stages."""
    progress = GroupProgress(seeds)
    sampling = SamplingParams(1.0, config.sampling.max_completion_tokens, (), return_support=return_support)
    group = SettledGroup(3, "group-3", prompt, "")
    request = GroupRequest(group, progress, sampling, "run/0/3/1", lambda: None, None)
    try:
        sampler = EpisodeSampler(EpisodeParts(LiveConfig(config), stages=stages, **scripted))
        await sampler.sample(request, lambda change: None)
    finally:
        stages.close()
    return progress.in_order


@dataclass
class Generators:
    """A generator that says the texts of a script, one a turn, and is lost where it is told to."""

    says: Says
    errors: dict[int, list[Exception]] = field(default_factory=dict)
    """By turn."""
    num_reported: int = 0
    """Tokens that each call reports before its error."""
    contexts: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    rooms: int = 0
    pace: Pace = field(default_factory=Pace)
    stops: bool = False
    """Whether what it says ends with the first stop string in it, as with an engine."""
    tokenizer: Any = None
    """If set, what it says has the ends of turns in it, and ends with the first stop token, as with an engine."""

    @contextlib.asynccontextmanager
    async def room(self, num_completions: int, **claim: Any) -> AsyncIterator[Any]:
        self.rooms += 1
        record = SimpleNamespace(worker_id=f"g{self.rooms}")
        yield SimpleNamespace(member=SimpleNamespace(record=record, serving=True, name="generator"))

    async def sample(
        self, binding: Any, prompt: Prompt, progress: GroupProgress, sampling: SamplingParams, **call: Any
    ) -> AsyncIterator[Completion]:
        turn = int(call["request_id"].split("turn-")[1].split("/")[0])
        tokenizer = self.tokenizer or TOKENIZER
        self.contexts.append(tokenizer.decode(prompt.token_ids))
        self.samplings.append(sampling)
        if self.errors.get(turn):
            ids = np.zeros(self.num_reported, np.int32)
            run = TokenRun(ids, np.zeros(len(ids), np.float32), (VersionSpan(WeightVersion(0, 0), 0, len(ids)),))
            progress.report(0, progress.num_prefix_tokens, run)
            raise self.errors[turn].pop(0)
        self.seeds.append(progress.seeds[0])
        progress.generators[binding.member.record.worker_id] = None
        text, end = self.says(turn), [] if self.tokenizer else [END]
        if self.stops and (found := [stop for stop in sampling.stop_strings if stop in text]):
            first = min(found, key=text.index)
            text, end = text.partition(first)[0] + first, []
        ids = [*tokenizer.encode(text, add_special_tokens=False), *end][: sampling.max_completion_tokens]
        if self.tokenizer and (stops := [place for place, token in enumerate(ids) if token in sampling.stop_token_ids]):
            ids = ids[: stops[0] + 1]
        support = Support(np.repeat(np.array(ids, np.int32), 2), np.full(len(ids), 2, np.int32))
        yield Completion(
            sample_index=0,
            token_ids=np.array(ids, np.int32),
            behavior_logprobs=np.full(len(ids), -0.5, np.float32),
            finish_reason=FinishReason.STOP if ids[-1:] == [END] or not end else FinishReason.LENGTH,
            version_spans=(VersionSpan(WeightVersion(0, turn // 3), 0, len(ids)),),
            seed=7,
            support=support if sampling.return_support else None,
        )
