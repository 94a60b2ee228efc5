"""The parts that an attempt samples and scores with."""

from services.coordinator.rollout.completions import CompletionSampler
from services.coordinator.rollout.episodes.environment_pool import EnvironmentPool
from services.coordinator.rollout.episodes.episode_sampler import EpisodeSampler
from services.coordinator.rollout.episodes.stage import EpisodeParts, Stages
from services.coordinator.rollout.rollout_parts import RolloutParts, training_sampling
from services.coordinator.run.checks.preflight import PreparedInputs
from services.coordinator.run.run_parts import RunParts
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.rewards.reward_pool import RewardPool


def rollout_parts(run: RunParts, inputs: PreparedInputs) -> tuple[EpisodeParts, RolloutParts]:
    """Connects what samples and scores to the workers of a run."""
    config, pause = run.config(), run.controls
    generators = GeneratorPool(
        run.fleet,
        max_num_seqs=config.generator.max_num_seqs,
        wait_timeout_s=config.coordinator.worker_timeout_s,
        running_s=pause.running_s,
    )
    rewards = RewardPool(run.fleet, run.events, config, pause.running_s)
    stages = Stages(config, inputs.tokenizer, inputs.stop_token_ids, inputs.time_s)
    episodes = EpisodeParts(run.config, pause, generators, EnvironmentPool(rewards), stages, run.events)
    return episodes, RolloutParts(
        run.config,
        pause,
        generators,
        CompletionSampler(run.config, pause, generators, inputs.tokenizer),
        EpisodeSampler(episodes),
        rewards,
        training_sampling(config, inputs.stop_token_ids),
    )
