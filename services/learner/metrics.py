"""What a train step says about itself. docs/metrics.md has the table.

Sums over tokens are kept on each rank and added over the ranks, so that every mean is over the tokens of the whole
batch, however they were spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.learner.batch import PackedRow, num_loss_tokens
from services.learner.loss import TokenLosses
from services.learner.ranks import Ranks
from shoal.rollout import TrainGroup

_SUMS = (
    "num_tokens", "loss", "policy_loss", "approx_kl", "clipped_low", "clipped_high", "entropy", "negative_logprob",
    "ratio", "ratio_squared", "kl1", "kl2", "kl3", "num_known", "gap",
)  # fmt: skip
_MAXIMA = ("ratio", "gap")


@dataclass
class TokenSums:
    """Sums and maxima over the scored tokens of some rows."""

    sums: Tensor = field(default_factory=lambda: torch.zeros(len(_SUMS), dtype=torch.float64))
    maxima: Tensor = field(default_factory=lambda: torch.zeros(len(_MAXIMA), dtype=torch.float64))

    def add(self, row: PackedRow, losses: TokenLosses, logprobs_C: Tensor, entropy_C: Tensor) -> None:
        """Takes a forward in."""
        counts = row.weights_C > 0
        if not bool(counts.any()):
            return
        ratio_C = torch.exp(losses.log_ratio_C)
        known_C = ~torch.isnan(row.behavior_logprobs_C)
        gap_C = torch.where(known_C, losses.log_ratio_C.abs(), 0.0)
        zero_C = torch.zeros_like(ratio_C)
        to_reference_C = losses.log_reference_ratio_C if losses.log_reference_ratio_C is not None else zero_C
        columns = {
            "num_tokens": row.weights_C,
            "loss": losses.loss_C.detach(),
            "policy_loss": losses.policy_loss_C,
            "approx_kl": losses.log_ratio_C.square() / 2,
            "clipped_low": losses.is_clipped_low_C,
            "clipped_high": losses.is_clipped_high_C,
            "entropy": entropy_C,
            "negative_logprob": -logprobs_C.detach(),
            "ratio": ratio_C,
            "ratio_squared": ratio_C.double().square(),
            "kl1": to_reference_C,
            "kl2": to_reference_C.square() / 2,
            "kl3": losses.kl_C if losses.kl_C is not None else zero_C,
            "num_known": known_C,
            "gap": gap_C,
        }
        self.sums += torch.stack([columns[name].double().sum() for name in _SUMS]).cpu()
        self.maxima = torch.maximum(self.maxima, torch.stack([ratio_C.max(), gap_C.max()]).double().cpu())

    def over(self, ranks: Ranks) -> "TokenSums":
        """The same over all ranks."""
        return TokenSums(ranks.reduce(self.sums), ranks.reduce(self.maxima, maximum=True))

    def merge(self, other: "TokenSums") -> None:
        """Takes more rows in."""
        self.sums += other.sums
        self.maxima = torch.maximum(self.maxima, other.maxima)

    def total(self, name: str) -> float:
        """The sum of one quantity over the tokens."""
        return float(self.sums[_SUMS.index(name)])

    def mean(self, name: str, *, of: str = "num_tokens") -> float:
        """The mean of one quantity over the tokens; 0 without any."""
        return self.total(name) / max(1.0, self.total(of))

    def maximum(self, name: str) -> float:
        """The largest value of one quantity."""
        return float(self.maxima[_MAXIMA.index(name)])


@dataclass
class StepRecord:
    """What a train step gathers as it goes."""

    applied: TokenSums = field(default_factory=TokenSums)
    """Over the mini-batches that were applied, each epoch anew."""
    first: TokenSums | None = None
    """Over the step's first mini-batch, before the weights moved."""
    grad_norms: list[float] = field(default_factory=list)
    num_refused: int = 0
    num_rows: int = 0
    """Rows of one epoch."""
    learning_rate: float = 0.0


def step_metrics(
    record: StepRecord, groups: Sequence[TrainGroup], *, num_epochs: int, kl_coef: float, duration_s: float
) -> dict[str, float]:
    """The metrics of a step, by name. Means over tokens are left out when nothing was applied."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    num_step_tokens = sum(len(group.prompt_token_ids) + rollout.completion.num_tokens for group, rollout in rollouts)
    metrics = {
        "val/num_step_tokens": float(num_step_tokens),
        "val/num_loss_tokens": float(sum(num_loss_tokens(group) for group in groups)),
        "other/packed_ratio": record.num_rows / max(1, len(rollouts)),
        "optim/num_refused": float(record.num_refused),
        "lr": record.learning_rate,
        "time/training": duration_s,
        "learner_tokens_per_second_step": num_step_tokens * num_epochs / duration_s,
    }
    if record.first is not None:
        first = record.first
        metrics |= {
            "val/logprob_gap_mean": first.mean("gap", of="num_known"),
            "val/logprob_gap_max": first.maximum("gap"),
            "val/num_missing_behavior_logprobs": first.total("num_tokens") - first.total("num_known"),
        }
    if record.grad_norms:
        metrics |= _means(record, num_passes=num_epochs * len(rollouts), kl_coef=kl_coef)
    return metrics


def _means(record: StepRecord, *, num_passes: int, kl_coef: float) -> dict[str, float]:
    """`num_passes` counts each completion once an epoch."""
    sums = record.applied
    ratio = sums.mean("ratio")
    metrics = {
        "objective/loss": sums.mean("loss"),
        "objective/entropy": sums.total("negative_logprob") / num_passes,
        "loss/policy_avg": sums.mean("policy_loss"),
        "policy/approxkl_avg": sums.mean("approx_kl"),
        "policy/clipfrac_avg": sums.mean("clipped_low") + sums.mean("clipped_high"),
        "policy/clipfrac_low": sums.mean("clipped_low"),
        "policy/clipfrac_high": sums.mean("clipped_high"),
        "policy/entropy_avg": sums.mean("entropy"),
        "val/ratio": ratio,
        "val/ratio_var": max(0.0, sums.mean("ratio_squared") - ratio * ratio),
        "val/ratio_max": sums.maximum("ratio"),
        "optim/grad_norm": sum(record.grad_norms) / len(record.grad_norms),
    }
    if kl_coef:
        metrics |= {
            "objective/kl": sums.total("kl1") / num_passes,
            "objective/kl2": sums.total("kl2") / num_passes,
            "objective/kl3": sums.total("kl3") / num_passes,
            "loss/kl_avg": kl_coef * sums.mean("kl3"),
        }
    return metrics
