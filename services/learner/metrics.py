"""Metrics of a train step. docs/metrics.md has the table.

Each rank sums over its tokens, and the sums of all ranks are added. So every mean is over the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.learner.loss.policy_loss import RowLoss
from services.learner.model.contexts import num_loss_tokens
from services.learner.model.flops import Work
from services.learner.ranks.process_group import ProcessGroup
from shoal.rollout import TrainGroup

SUMS = (
    "num_tokens", "loss", "policy_loss", "approx_kl", "clipped_low", "clipped_high", "clipped_dual", "entropy",
    "negative_logprob", "ratio", "ratio_squared", "weight", "truncated", "dropped", "filtered", "filtered_low",
    "kl", "kl_of_completion", "completion", "kl1", "kl2", "kl3", "kl4",
)  # fmt: skip
"""The names of the sums over tokens, in the order of `TokenSums.sums`."""


@dataclass
class TokenSums:
    """Sums and maxima over the tokens of some rows. Only tokens that count in the loss are included."""

    sums: Tensor = field(default_factory=lambda: torch.zeros(len(SUMS), dtype=torch.float64))
    largest_ratio: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def add(self, row: RowLoss) -> None:
        """Adds the tokens of a row on the row's device, without a wait for it."""
        totals = {"loss": row.loss.detach().double()}
        none = torch.zeros_like(totals["loss"])
        if len(row.logprobs_C):
            columns = self._columns(row)
            totals |= dict(zip(columns, torch.stack(list(columns.values())).sum(dim=1), strict=True))
            largest = columns["ratio"].max()
            self.largest_ratio = torch.maximum(self.largest_ratio.to(none.device), largest)
        self.sums = self.sums.to(none.device) + torch.stack([totals.get(name, none) for name in SUMS])

    @staticmethod
    def _columns(row: RowLoss) -> dict[str, Tensor]:
        """Returns the values of a row's tokens by the name of their sum; each is [C]."""
        log_ratio_C = row.logprobs_C - row.baseline_logprobs_C
        ratio_C = torch.exp(log_ratio_C)
        columns = {
            "num_tokens": torch.ones_like(ratio_C),
            "policy_loss": row.policy_loss_C,
            "approx_kl": log_ratio_C.square() / 2,
            "clipped_low": row.policy.is_clipped_low_C,
            "clipped_high": row.policy.is_clipped_high_C,
            "clipped_dual": row.policy.is_dual_clipped_C,
            "entropy": row.entropy_C,
            "negative_logprob": -row.logprobs_C,
            "ratio": ratio_C,
            "ratio_squared": ratio_C.double().square(),
            "weight": torch.where(row.correction.is_dropped_C, 0.0, row.correction.weights_C),
            "truncated": row.correction.is_truncated_C,
            "dropped": row.is_dropped_C,
            "filtered": row.correction.is_dropped_C,
            "filtered_low": row.correction.is_dropped_low_C,
        }
        if row.kl_C is not None and row.reference_logprobs_C is not None:
            distance_C = row.logprobs_C - row.reference_logprobs_C
            completions = row.tokens.completions
            columns |= {
                "kl": row.kl_C,
                "kl_of_completion": row.kl_C / completions.spread(completions.num_tokens()),
                # The share of the completion; the sum counts the completions with a token left in the loss.
                "completion": 1 / completions.spread(completions.num_tokens()).double(),
                "kl1": distance_C,
                "kl2": distance_C.square() / 2,
                "kl3": torch.expm1(-distance_C) + distance_C,
                "kl4": ratio_C * distance_C,
            }
        return columns

    def all_reduce(self, process_group: ProcessGroup) -> "TokenSums":
        """Returns the sums and maxima over all ranks."""
        return TokenSums(
            process_group.all_reduce(self.sums.cpu()), process_group.all_reduce(self.largest_ratio.cpu(), maximum=True)
        )

    def merge(self, other: "TokenSums") -> None:
        """Adds the sums and maxima of `other`."""
        self.sums += other.sums
        self.largest_ratio = torch.maximum(self.largest_ratio, other.largest_ratio)

    def total(self, name: str) -> float:
        """Returns the sum of one quantity over the tokens."""
        return float(self.sums[SUMS.index(name)])

    @property
    def kl_of_completions(self) -> float:
        """The mean KL over the loss tokens of a completion, averaged over completions; 0 without loss tokens."""
        return self.total("kl_of_completion") / max(1.0, self.total("completion"))

    def mean(self, name: str) -> float:
        """Returns the mean of one quantity over the tokens; 0 without tokens."""
        return self.total(name) / max(1.0, self.total("num_tokens"))


@dataclass
class StepRecord:
    """The values that a train step collects for its metrics."""

    applied: TokenSums = field(default_factory=TokenSums)
    """Sums over the applied mini-batches. A mini-batch counts once for each epoch."""
    losses: list[float] = field(default_factory=list)
    """The loss of each applied optimizer step."""
    grad_norms: list[float] = field(default_factory=list)
    num_completions: int = 0
    """The completions in the applied mini-batches. A completion counts once for each epoch."""
    num_refused: int = 0
    num_rejected: int = 0
    """Tokens of one epoch that filters rejected."""
    num_rows: int = 0
    """Rows of one epoch."""
    learning_rate: float = 0.0
    gap: dict[str, float] = field(default_factory=dict)
    """The result of `GapSums.metrics`."""
    work: Work = field(default_factory=Work)
    """The work of this rank in all mini-batches, applied or not; every epoch counts again."""


def step_metrics(
    record: StepRecord,
    groups: Sequence[TrainGroup],
    *,
    num_epochs: int,
    kl_coef: float,
    has_reference: bool,
    duration_s: float,
) -> dict[str, float]:
    """Computes the metrics of a step, by name. Means over tokens are left out when nothing was applied."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    num_step_tokens = sum(
        len(segment.prompt_token_ids) + segment.end - segment.start
        for group, rollout in rollouts
        for segment in rollout.completion.segments(group.prompt_token_ids)
    )
    num_tokens = sum(num_loss_tokens(rollout) for _, rollout in rollouts)
    metrics = {
        "val/num_step_tokens": float(num_step_tokens),
        "val/num_loss_tokens": float(num_tokens),
        "val/rejected_share": record.num_rejected / max(1, num_tokens),
        "other/packed_ratio": record.num_rows / max(1, len(rollouts)),
        "optim/num_refused": float(record.num_refused),
        "lr": record.learning_rate,
        "time/training": duration_s,
        "learner_tokens_per_second_step": num_step_tokens * num_epochs / duration_s,
    }
    metrics |= record.gap
    if record.grad_norms:
        metrics |= _means(record)
        if has_reference:
            metrics |= _kl_means(record, kl_coef)
    return metrics


def rate_metrics(work: Work, *, training_s: float, num_ranks: int, peak: float | None) -> dict[str, float]:
    """Computes the rates of the mini-batches: `work` of all ranks together in `training_s` seconds.

    `peak` is the data sheet's FLOP/s of each rank's GPU; without it there is no MFU.
    """
    rank_s = max(training_s, 1e-9) * num_ranks
    metrics = {"learner_tokens_per_second_per_rank": work.num_tokens / rank_s}
    return metrics if peak is None else metrics | {"learner_mfu": work.flops / rank_s / peak}


def _means(record: StepRecord) -> dict[str, float]:
    sums = record.applied
    ratio, filtered, low = sums.mean("ratio"), sums.mean("filtered"), sums.mean("filtered_low")
    return {
        "objective/loss": sum(record.losses) / len(record.losses),
        "objective/entropy": sums.total("negative_logprob") / record.num_completions,
        "loss/policy_avg": sums.mean("policy_loss"),
        "policy/approxkl_avg": sums.mean("approx_kl"),
        "policy/clipfrac_avg": sums.mean("clipped_low") + sums.mean("clipped_high"),
        "policy/clipfrac_low": sums.mean("clipped_low"),
        "policy/clipfrac_high": sums.mean("clipped_high"),
        "policy/clipfrac_dual": sums.mean("clipped_dual"),
        "policy/entropy_avg": sums.mean("entropy"),
        "val/ratio": ratio,
        "val/ratio_var": max(0.0, sums.mean("ratio_squared") - ratio * ratio),
        "val/ratio_max": float(sums.largest_ratio),
        "val/rho_weight": sums.mean("weight"),
        "val/rho_clipfrac": sums.mean("truncated"),
        "val/rho_drop_frac": filtered,
        "val/rho_drop_low_frac": low,
        "val/rho_drop_high_frac": filtered - low,
        "val/dropped_share": sums.mean("dropped"),
        "optim/grad_norm": sum(record.grad_norms) / len(record.grad_norms),
    }


def _kl_means(record: StepRecord, kl_coef: float) -> dict[str, float]:
    sums, num_completions = record.applied, record.num_completions
    return {
        "objective/kl": sums.total("kl1") / num_completions,
        "objective/kl2": sums.total("kl2") / num_completions,
        "objective/kl3": sums.total("kl3") / num_completions,
        "objective/kl0_avg": sums.mean("kl1"),
        "objective/kl1_avg": sums.mean("kl2"),
        "objective/kl2_avg": sums.mean("kl3"),
        "objective/kl3_avg": sums.mean("kl4"),
        "objective/kl_coef": kl_coef,
        "loss/kl_avg": kl_coef * sums.mean("kl"),
    }
