"""Mini-batches: whole groups, and the factor of each of their tokens in the loss.

All values of this module are computed before the mini-batch is packed, from values that all ranks have. Some values
need the policy's log-probabilities of the whole step: proximal log-probabilities for several optimizer steps,
quantiles, means of weights, divisors without rejected tokens. These values come from a survey: one pass without
gradient over the step's groups, before the first optimizer step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from services.learner.loss.correction import Correction, correct, entropy_threshold
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.objectives.completions import Completions
from services.learner.model.packing import cut_mini_batches
from shoal.config import RunConfig
from shoal.rollout import TrainGroup


@dataclass(frozen=True)
class Survey:
    """The policy's scores of a step's tokens before the first optimizer step. Both are [N] float32, on the CPU."""

    logprobs_N: Tensor
    entropies_N: Tensor


@dataclass(frozen=True)
class MiniBatch:
    """The groups of one optimizer step. Every tensor is [N], on the CPU."""

    groups: tuple[TrainGroup, ...]
    tokens: LossTokens
    factors_N: Tensor
    """The factor of each token, float64; 0 for a rejected token. The loss is the sum of factor times token loss."""
    counts_N: Tensor
    """bool: whether the token takes part in the loss at all; False for a rejected token."""
    is_kept_N: Tensor
    """bool: whether the policy loss of the token counts. If not, the token still counts in the divisor and the KL."""
    proximal_logprobs_N: Tensor | None
    """The log-probabilities before the step's first optimizer step. None means that the live values are used."""
    correction: Correction | None
    """The correction of the tokens. None means that the correction is computed from the live log-probabilities."""

    @property
    def num_counted(self) -> int:
        return int(self.counts_N.sum())


def needs_survey(config: RunConfig) -> bool:
    """Returns whether a step needs a survey of its tokens before it begins.

    With one optimizer step the policy's live log-probabilities are also the proximal log-probabilities.
    """
    correction, num_optimizer_steps = config.correction, config.grpo.optimizer_steps_per_step
    return (
        (config.loss.baseline == "proximal" and num_optimizer_steps > 1)
        or config.loss.top_entropy_share < 1
        or correction.normalize
        or any(test.reject for test in correction.filters)
    )


def plan_mini_batches(groups: Sequence[TrainGroup], survey: Survey | None, config: RunConfig) -> list[MiniBatch]:
    """Plans the mini-batches of a step: whole groups in issue order. `survey` covers all tokens of `groups`."""
    step = LossTokens.of(groups)
    correction = None
    is_kept_N = torch.ones(len(step), dtype=torch.bool)
    if survey is not None:
        correction = correct_step(step, survey, config)
        is_kept_N = keep_top_entropy(survey.entropies_N, config.loss.top_entropy_share)
    planned, start = [], 0
    for part in cut_mini_batches(groups, config.grpo.num_mini_batches):
        tokens = LossTokens.of(part)
        at = slice(start, start + len(tokens))
        start = at.stop
        planned.append(
            weigh_mini_batch(
                part,
                tokens,
                config,
                is_kept_N=is_kept_N[at],
                proximal_logprobs_N=None if survey is None else survey.logprobs_N[at],
                correction=None if correction is None else pick(correction, at),
            )
        )
    return planned


def correct_step(step: LossTokens, survey: Survey, config: RunConfig) -> Correction:
    """Computes the correction of all tokens of a step."""
    return correct(config.correction, survey.logprobs_N, step.behavior_logprobs_N, step.advantages_N, step.sequences)


def keep_top_entropy(entropies_N: Tensor, share: float) -> Tensor:
    """Picks the `share` of a step's tokens with the highest entropy, [N] bool; all tokens if `share` is 1."""
    if share == 1 or not len(entropies_N):
        return torch.ones(len(entropies_N), dtype=torch.bool)
    return entropies_N >= entropy_threshold(entropies_N, share)


def weigh_mini_batch(
    groups: tuple[TrainGroup, ...],
    tokens: LossTokens,
    config: RunConfig,
    *,
    is_kept_N: Tensor,
    proximal_logprobs_N: Tensor | None,
    correction: Correction | None,
) -> MiniBatch:
    """Computes the factor of each token of a mini-batch."""
    counts_N = torch.ones(len(tokens), dtype=torch.bool)
    if correction is not None:
        counts_N = ~correction.is_rejected_C
    counted = Completions(tokens.completions.index_C[counts_N], tokens.completions.num)
    factors_N = torch.zeros(len(tokens), dtype=torch.float64)
    factors_N[counts_N] = token_factors(
        config.loss.resolved_aggregation,
        counted,
        denominator=config.loss.denominator or config.sampling.max_completion_tokens,
        empty_sequences=config.loss.empty_sequences,
    )
    return MiniBatch(groups, tokens, factors_N * tokens.weights_N, counts_N, is_kept_N, proximal_logprobs_N, correction)


def pick(correction: Correction, at: Tensor | slice) -> Correction:
    """Returns the correction of the tokens at the indices `at`."""
    return Correction(**{field.name: getattr(correction, field.name)[at] for field in fields(Correction)})


def token_factors(
    mode: str,
    completions: Completions,
    *,
    denominator: float | None = None,
    empty_sequences: Literal["skip", "count"] = "skip",
) -> Tensor:
    """Returns the factor of each token's loss, [C] float64; the loss is the sum of the products.

    The factors take into account all completions of the mini-batch, so the value and gradient of the loss do not depend
    on how its tokens are packed, cut into forwards or spread over ranks. No factor is a mean of means.

    With N tokens, S completions and n tokens in the token's completion: `token-mean` 1 / N (DAPO, arXiv:2503.14476);
    `seq-mean-token-mean` 1 / (S n) (GRPO, arXiv:2402.03300); `seq-mean-token-sum` 1 / S; `seq-mean-token-sum-norm` 1 /
    (S denominator) (Dr. GRPO, arXiv:2503.20783); `fixed-denominator` 1 / denominator. S includes completions without
    tokens only if `empty_sequences` is "count".
    """
    num_tokens_S = completions.num_tokens()
    num_sequences = completions.num if empty_sequences == "count" else int((num_tokens_S > 0).sum())
    factors_C = torch.ones(len(completions.index_C), dtype=torch.float64, device=completions.index_C.device)
    match mode:
        case "token-mean":
            return factors_C / max(1, len(factors_C))
        case "seq-mean-token-mean":
            return factors_C / completions.spread(num_tokens_S) / max(1, num_sequences)
        case "seq-mean-token-sum":
            return factors_C / max(1, num_sequences)
        case "seq-mean-token-sum-norm":
            assert denominator is not None
            return factors_C / (max(1, num_sequences) * denominator)
        case "fixed-denominator":
            assert denominator is not None
            return factors_C / denominator
    raise AssertionError(f"unknown aggregation {mode!r}")
