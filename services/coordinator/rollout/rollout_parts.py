"""The parts that sample and score groups for training and held-out questions."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.coordinator.rollout.completions import CompletionSampler, EpisodeSampling
from services.coordinator.rollout.pause import Pause
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.reward_pool import RewardPool
from shoal.config import RunConfig
from shoal.config.live import LiveConfig
from shoal.rollout import SamplingParams


@dataclass(frozen=True)
class RolloutParts:
    """Samples and scores groups for training, and held-out questions."""

    config: LiveConfig
    pause: Pause
    generators: GeneratorPool
    completions: CompletionSampler
    episodes: EpisodeSampling
    rewards: RewardPool
    sampling: SamplingParams
    """The settings of training."""


def training_sampling(config: RunConfig, stop_token_ids: Sequence[int]) -> SamplingParams:
    """Returns the sampling settings of completions for training."""
    settings = config.sampling
    return SamplingParams(
        temperature=settings.temperature,
        max_completion_tokens=settings.max_completion_tokens,
        stop_token_ids=tuple(stop_token_ids),
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        stop_strings=tuple(settings.stop_strings),
        return_support=settings.is_restricted,
    )
