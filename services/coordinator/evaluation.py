"""Asking held-out questions, greedily, through the same generators and verifiers as in training."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.coordinator.generators import GeneratorLost, Generators
from services.coordinator.rewards import GrowingGroup, Rewards
from services.coordinator.sampling import NUM_TIMED_ISSUES, Sampler
from services.coordinator.step import is_correct
from services.coordinator.tasks import first_error
from shoal.config import RunConfig
from shoal.errors import DeadlineExceeded
from shoal.rollout import Prompt, SamplingParams, Score, ScoreOutcome

NUM_IN_FLIGHT = 64
"""Questions asked at once."""


@dataclass(frozen=True)
class EvaluationResult:
    """How a policy did on the held-out questions."""

    num_prompts: int
    num_scored: int
    correct_rate: float
    """Share of the scored answers that are correct."""
    mean_reward: float


async def evaluate(
    config: RunConfig,
    prompts: Sequence[Prompt],
    *,
    name: str,
    sampler: Sampler,
    generators: Generators,
    rewards: Rewards,
) -> EvaluationResult:
    """Has each question answered once and scored. `name` tells the evaluation's requests from other ones."""
    sampling = replace(sampler.sampling, temperature=0.0)
    places = asyncio.Semaphore(NUM_IN_FLIGHT)

    async def ask(index: int, prompt: Prompt) -> Score:
        async with places:
            return await _ask(config, f"{name}/{index}", prompt, sampling, sampler, generators, rewards)

    async with first_error(asyncio.TaskGroup()) as tasks:
        asked = [tasks.create_task(ask(index, prompt)) for index, prompt in enumerate(prompts)]
    scored = [score for task in asked if (score := task.result()).outcome is ScoreOutcome.SCORED]
    return EvaluationResult(
        num_prompts=len(prompts),
        num_scored=len(scored),
        correct_rate=statistics.fmean(is_correct(score) for score in scored) if scored else 0.0,
        mean_reward=statistics.fmean(score.reward for score in scored) if scored else 0.0,
    )


async def _ask(
    config: RunConfig,
    name: str,
    prompt: Prompt,
    sampling: SamplingParams,
    sampler: Sampler,
    generators: Generators,
    rewards: Rewards,
) -> Score:
    """One question's score; FAILED when it runs into `coordinator.sampling_timeout_s` twice."""
    timeout_s = config.coordinator.sampling_timeout_s
    num_tries, num_timed_out = 0, 0
    while True:
        await sampler.unpaused()
        num_tries += 1
        num_pauses = sampler.num_pauses
        try:
            group = GrowingGroup()
            member = await generators.choose(1)
            async for completion in generators.sample(
                member, prompt, [0], sampling, request_id=f"{name}/{num_tries}", timeout_s=timeout_s
            ):
                group.add(await sampler.with_text(completion))
            group.complete()
            (score,) = await rewards.score(name, prompt, group, timeout_s=timeout_s)
            return score
        except GeneratorLost:
            continue
        except DeadlineExceeded:
            num_timed_out += num_pauses == sampler.num_pauses
            if num_timed_out == NUM_TIMED_ISSUES:
                return Score(0, ScoreOutcome.FAILED, 0.0, ())
