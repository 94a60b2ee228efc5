"""Configurations of the loss, and batches with every case that a loss can meet."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shoal.config import RunConfig
from shoal.config.tables.loss import Objective
from shoal.rollout import Rollout, TrainGroup
from tests.support.configs import run_config
from tests.support.train_batches import make_groups

PROXIMAL = {"baseline": "proximal"}
VARIANTS: dict[str, dict[str, Any]] = {
    **{objective: {"loss": {"objective": objective}} for objective in get_args(Objective)},
    "dual clip": {"loss": {"dual_clip": 1.5}},
    "two-sided cispo, unified mask": {"loss": {"objective": "cispo", "cispo_lower": True, "cispo_unified_mask": True}},
    "sequence mean": {"loss": {"aggregation": "seq-mean-token-mean"}},
    "sequence sum, empty ones count": {"loss": {"aggregation": "seq-mean-token-sum", "empty_sequences": "count"}},
    "dr. grpo": {"loss": {"aggregation": "seq-mean-token-sum-norm"}},
    "fixed denominator": {"loss": {"aggregation": "fixed-denominator", "denominator": 200.0}},
    "truncated importance weights": {"loss": PROXIMAL, "correction": {"weight": "token"}},
    "normalized sequence weights": {"loss": PROXIMAL, "correction": {"weight": "sequence", "normalize": True}},
    "icepop": {"loss": PROXIMAL, "correction": {"filters": [{"low": 0.5, "high": 2.0}]}},
    "rejection": {
        "loss": {**PROXIMAL, "objective": "gspo"},
        "correction": {
            "weight": "geometric",
            "filters": [
                {"statistic": "k3", "high": 2.0, "reject": True},
                {"level": "sequence_mean", "low": 0.2, "high": 4.0, "reject": True},
            ],
        },
    },
    "top entropy": {"loss": {"top_entropy_share": 0.3}},
    "off-policy mask": {"loss": {"off_policy_mask": 0.05}},
    "entropy bonus": {"loss": {"entropy_coef": 0.05}},
    "bias-corrected kl": {"kl": {"coef": 0.2, "gradient": "bias_corrected"}},
    "adaptive kl": {"kl": {"coef": 0.2, "estimator": "k2", "target": 0.01, "horizon": 100}},
}
CORE = (
    "ppo_clip", "cispo", "dual clip", "dr. grpo", "truncated importance weights", "normalized sequence weights",
    "icepop", "rejection", "top entropy", "off-policy mask", "adaptive kl",
)  # fmt: skip
"""The variants that together use every part of the loss. Real DeepSpeed trains with these; unit tests use all."""


def variant_config(model: Path, variant: str, **sections: Any) -> RunConfig:
    learner = {"compute_dtype": "float32", "learning_rate": 1e-3, "pack_tokens": 48, "logits_chunk_tokens": 16}
    common = {"sampling": {"max_completion_tokens": 16}, "grpo": {"groups_per_step": 4}, "learner": learner}
    return run_config(model, **common | VARIANTS[variant] | sections)


def varied_groups(num_groups: int = 4, *, seed: int = 0) -> tuple[TrainGroup, ...]:
    """Groups with rewards, weights, masks, token advantages, unknown behavior, and a wholly masked completion."""
    groups = make_groups(num_groups=num_groups, group_size=5, seed=seed)
    return tuple(replace(group, rollouts=tuple(map(_vary, range(5), group.rollouts))) for group in groups)


def _vary(number: int, rollout: Rollout) -> Rollout:
    completion, length = rollout.completion, rollout.completion.num_tokens
    rollout = replace(rollout, reward=float(number % 2))
    match number:
        case 1:
            return replace(rollout, weight=1.75)
        case 2:
            advantages = np.linspace(-1, 2, length, dtype=np.float32)
            return replace(rollout, token_advantages=advantages)
        case 3:
            behavior = np.where(np.arange(length) % 3 == 1, np.nan, completion.behavior_logprobs).astype(np.float32)
            mask = np.arange(length) % 4 != 2
            return replace(rollout, completion=replace(completion, behavior_logprobs=behavior, loss_mask=mask))
        case 4:
            return replace(rollout, completion=replace(completion, loss_mask=np.zeros(length, dtype=bool)))
    return rollout
