"""What a train step's figures are made of beside its completions and the learner's own: rates, shares, sums of both.

docs/metrics.md says what each name means.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from services.coordinator.occupancy import Occupancy
from services.coordinator.publisher import PublishReport
from services.coordinator.sampling import SettledGroup
from shoal.rollout import FinishReason, ScoreOutcome

FORMAT_VERIFIER = "r1_format"
"""The verifier whose value is the format score of `val/format_scores`."""


class StepFigures:
    """Keeps time between steps, for all three kinds of workers."""

    def __init__(self, generators: Occupancy, rewards: Occupancy) -> None:
        self._generators = generators
        self._rewards = rewards
        self._began = time.monotonic()
        self._num_tokens = 0

    def begin(self) -> None:
        """Training begins now: what was before counts for no step."""
        self._began = time.monotonic()
        self._generators.take()
        self._rewards.take()

    def rates(self, *, num_step_tokens: float, waited_s: float) -> dict[str, float]:
        """Of the time since the last step; `waited_s` of it the learner could not begin one."""
        sampled, scored = self._generators.take(), self._rewards.take()
        self._num_tokens += int(num_step_tokens)
        return {
            "generator_tokens_per_second_step": sampled.tokens_per_second,
            "reward_tokens_per_second_step": scored.tokens_per_second,
            "learner_tokens_per_second_overall": self._num_tokens / max(time.monotonic() - self._began, 1e-9),
            "waiting/learner": min(1.0, waited_s / sampled.duration_s) if sampled.duration_s > 0 else 0.0,
            "waiting/generators": sampled.idle_share,
            "waiting/rewards": scored.idle_share,
        }


def publish_figures(report: PublishReport) -> dict[str, float]:
    """What bringing the new weights to the generators cost."""
    return {"time/weights_pause": report.pause_s, "time/weights_broadcast": report.broadcast_s}


def reward_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """What the reward would be, or is, with the KL divergence taken from it; absent when nothing was scored.

    objective/non_score_reward = coefficient x KL, and objective/rlhf_reward = objective/scores - that. The KL is
    objective/kl; where the reward itself is lowered, it is what it is lowered by. Without a coefficient it is 0.
    """
    if "objective/scores" not in figures:
        return {}
    if "objective/reward_kl" in figures:
        penalty = figures["objective/reward_kl_coef"] * figures["objective/reward_kl"]
    else:
        penalty = figures.get("objective/kl_coef", 0.0) * figures.get("objective/kl", 0.0)
    return {"objective/non_score_reward": penalty, "objective/rlhf_reward": figures["objective/scores"] - penalty}


def answer_figures(groups: Sequence[SettledGroup]) -> dict[str, float]:
    """Stop tokens and format scores of a step's completions."""
    num_stopped = sum(c.finish_reason is FinishReason.STOP for group in groups for c in group.completions)
    figures = {"val/num_stop_token_ids": float(num_stopped)}
    formats = [
        part.value
        for group in groups
        for score in group.scores
        for part in score.verifier_scores
        if part.verifier == FORMAT_VERIFIER and part.outcome is ScoreOutcome.SCORED
    ]
    if formats:
        figures["val/format_scores"] = fmean(formats)
    return figures
