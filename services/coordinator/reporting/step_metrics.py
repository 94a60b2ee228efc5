"""Metrics of a train step: its completions, the learner, the publish, and times.

To add a metric, compute it here (or in `rollout_metrics`, if completions alone decide it) and describe it in
`shoal.telemetry.run_metric_table`, which docs/metrics.md is generated from.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from services.coordinator.reporting.rollout_metrics import rollout_metrics
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.training.step_plan import StepPlan
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.utilization import Utilization
from services.coordinator.workers.weights.publisher import PublishReport
from shoal.config.live import LiveConfig


class StepTimer:
    """Measures the parts of one train step; each method ends one part. Pauses of the run do not count."""

    def __init__(self, running_s: Callable[[], float]) -> None:
        """Starts the measurement at the boundary before the step.

        `running_s` is a clock that stops while the run is paused.
        """
        self._running_s = running_s
        self._last, self._last_running = time.monotonic(), running_s()
        self.waited_s = 0.0
        """Seconds until the step's groups were taken, without evaluations."""
        self.trained_s = 0.0
        """Seconds of the plan and the train step."""
        self.published_s = 0.0
        """Seconds from the end of training to the end of the publish."""
        self.step_s = 0.0
        """Seconds of the whole step, without evaluations."""

    def groups_taken(self, *, evaluated_s: float) -> None:
        """Ends the wait for groups. For `evaluated_s` of this time the loop stood still for evaluations."""
        self.waited_s = self._lap() - evaluated_s

    def trained(self) -> None:
        """Ends the part of the plan and the train step."""
        self.trained_s = time.monotonic() - self._last  # A train step that has begun continues in a pause.
        self._lap()

    def published(self) -> None:
        """Ends the part of the publish."""
        self.published_s = self._lap()

    def finished(self) -> None:
        """Ends the step."""
        self.step_s = self.waited_s + self.trained_s + self.published_s + self._lap()

    def metrics(self) -> dict[str, float]:
        """Returns the times by metric name."""
        return {
            "time/waiting_for_groups": self.waited_s,
            "time/training": self.trained_s,
            "time/publishing": self.published_s,
            "time/step": self.step_s,
        }

    def _lap(self) -> float:
        running = self._running_s()
        lap_s, self._last_running = running - self._last_running, running
        self._last = time.monotonic()
        return lap_s


@dataclass(frozen=True)
class FinishedStep:
    """An applied train step, with everything from which its metrics are computed."""

    groups: Sequence[JudgedGroup]
    plan: StepPlan
    trainer: dict[str, float]
    """The metrics that the learner reported, and the metrics of the KL in the reward."""
    publish: PublishReport | None
    """The publish; None if the run stopped before the publish."""
    timer: StepTimer
    num_episodes: int
    """Number of completions that the run has used up, including the completions of this step."""
    num_excluded_prompts: int
    """Number of prompts that are no longer issued because the policy has learned them."""


class StepMetrics:
    """Computes the metrics of each train step. Keeps the times and token counts of the previous steps."""

    def __init__(
        self,
        config: LiveConfig,
        *,
        num_prompts: int,
        generators: GeneratorPool,
        rewards: Utilization,
        running_s: Callable[[], float],
    ) -> None:
        """Starts the clock of `time/from_scratch`. `running_s` is a clock that stops while the run is paused."""
        self._running_s = running_s
        self._config = config
        self._num_prompts = num_prompts
        self._generators = generators
        self._rewards = rewards
        self._run_began = running_s()
        self._training_began = self._run_began
        self._num_tokens = 0

    def begin_training(self) -> None:
        """Starts the clocks of all rates. Earlier time is not counted for any step."""
        self._training_began = self._running_s()
        self._generators.utilization.take()
        self._generators.take_kv_cache_use()
        self._rewards.take()

    def of(self, step: FinishedStep) -> dict[str, float]:
        """Computes all metrics of a step, by name.

        Call this function once for each step: rates cover the time since the last call.
        """
        metrics = rollout_metrics(self._config(), step.groups, step.plan) | step.trainer
        if step.publish is not None:
            metrics |= {
                "time/weights_pause": step.publish.pause_s,
                "time/weights_broadcast": step.publish.broadcast_s,
                "other/published_bytes": float(step.publish.num_bytes),
            }
        metrics |= step.timer.metrics()
        metrics |= {
            "time/from_scratch": self._running_s() - self._run_began,
            "episode": float(step.num_episodes),
            "epoch": (max(group.settled.position for group in step.groups) + 1) / self._num_prompts,
            "batch/no_resampled_prompts": float(step.num_excluded_prompts),
            "batch/total_prompts": float(self._num_prompts),
        }
        metrics |= penalized_reward(metrics)
        return metrics | self._rates(metrics.get("val/num_step_tokens", 0.0), waited_s=step.timer.waited_s)

    def _rates(self, num_step_tokens: float, *, waited_s: float) -> dict[str, float]:
        """Computes rates since the last step; for `waited_s` of that time the learner had no groups to train on."""
        sampled, scored = self._generators.utilization.take(), self._rewards.take()
        self._num_tokens += int(num_step_tokens)
        elapsed_s = max(self._running_s() - self._training_began, 1e-9)
        rates = {
            "generator_tokens_per_second_step": sampled.tokens_per_second,
            "reward_tokens_per_second_step": scored.tokens_per_second,
            "learner_tokens_per_second_overall": self._num_tokens / elapsed_s,
            "waiting/learner": min(1.0, waited_s / sampled.duration_s) if sampled.duration_s > 0 else 0.0,
            "waiting/generators": sampled.idle_share,
            "waiting/rewards": scored.idle_share,
            # The last group on a generator may have more completions than there are seats.
            "usage/generator_seats": min(1.0, sampled.mean_out / max(1, self._generators.num_seats)),
        }
        kv_cache_use = self._generators.take_kv_cache_use()
        return rates if kv_cache_use is None else rates | {"usage/kv_cache": kv_cache_use}


def penalized_reward(metrics: Mapping[str, float]) -> dict[str, float]:
    """Computes the mean reward less the KL divergence; nothing if no completion was scored.

    `objective/non_score_reward` = coefficient x KL, and `objective/rlhf_reward` = `objective/scores` - that. The KL is
    `objective/kl`, or `objective/reward_kl` if the KL is part of the reward. Without a coefficient the KL is 0.
    """
    if "objective/scores" not in metrics:
        return {}
    if "objective/reward_kl" in metrics:
        penalty = metrics["objective/reward_kl_coef"] * metrics["objective/reward_kl"]
    else:
        penalty = metrics.get("objective/kl_coef", 0.0) * metrics.get("objective/kl", 0.0)
    return {"objective/non_score_reward": penalty, "objective/rlhf_reward": metrics["objective/scores"] - penalty}
