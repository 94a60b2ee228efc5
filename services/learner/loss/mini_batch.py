"""Mini-batches: whole groups, and the factor of each of their tokens in the loss.

All values of this module are computed before the mini-batch is packed, from values that all ranks have. The factors
need only the lengths of completions. Some values need the policy's log-probabilities of the whole step: proximal
log-probabilities for several optimizer steps, quantiles, means of weights, divisors without rejected tokens. These
values come from a survey: one pass without gradient over the step's groups, before the first optimizer step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from services.learner.loss.correction import Correction, correct, entropy_threshold
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.tensors import map_tensors
from services.learner.model.contexts import num_loss_tokens
from services.learner.model.packing import cut_mini_batches
from shoal.config import RunConfig
from shoal.rollout import TrainGroup


@dataclass(frozen=True)
class Survey:
    """The policy's scores of a step's tokens before the first optimizer step. Both are [N] float32, on the CPU."""

    logprobs_N: Tensor
    entropies_N: Tensor
    tokens: LossTokens


@dataclass(frozen=True)
class Surveyed:
    """The values of the tokens of a mini-batch that come from a survey. Every tensor is [N], on the CPU."""

    proximal_logprobs_N: Tensor
    """The log-probabilities before the step's first optimizer step."""
    correction: Correction
    is_kept_N: Tensor
    """bool: whether the policy loss of the token counts. If not, the token still counts in the divisor and the KL."""

    def part(self, at: Tensor | slice) -> "Surveyed":
        """Returns the values of the tokens at `at`."""
        picked: Surveyed = map_tensors(self, lambda values: values[at])
        return picked


@dataclass(frozen=True)
class MiniBatch:
    """The groups of one optimizer step, with S completions of N tokens that are not masked."""

    groups: tuple[TrainGroup, ...]
    factors_S: Tensor
    """The factor of each token of a completion, [S] float64. The loss is the sum of factor times token loss."""
    num_tokens: int
    """N."""
    num_counted: int
    """The number of tokens that take part in the loss, which are those that no filter rejected."""
    surveyed: Surveyed | None
    """The values from the survey. None means that they are computed from the live log-probabilities."""

    @property
    def num_completions(self) -> int:
        return len(self.factors_S)


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
    surveyed = None if survey is None else survey_values(survey, config)
    planned, start = [], 0
    for part in cut_mini_batches(groups, config.grpo.num_mini_batches):
        rollouts = [rollout for group in part for rollout in group.rollouts]
        num_tokens_S = torch.tensor([num_loss_tokens(rollout) for rollout in rollouts])
        at = slice(start, start + int(num_tokens_S.sum()))
        start = at.stop
        weights_S = torch.tensor([rollout.weight for rollout in rollouts])
        planned.append(
            weigh_mini_batch(
                part, num_tokens_S, weights_S, config, surveyed=None if surveyed is None else surveyed.part(at)
            )
        )
    return planned


def survey_values(survey: Survey, config: RunConfig) -> Surveyed:
    """Computes the values of all tokens of a step."""
    tokens = survey.tokens
    correction = correct(
        config.correction, survey.logprobs_N, tokens.behavior_logprobs_N, tokens.advantages_N, tokens.sequences
    )
    return Surveyed(survey.logprobs_N, correction, keep_top_entropy(survey.entropies_N, config.loss.top_entropy_share))


def keep_top_entropy(entropies_N: Tensor, share: float) -> Tensor:
    """Picks the `share` of a step's tokens with the highest entropy, [N] bool; all tokens if `share` is 1."""
    if share == 1 or not len(entropies_N):
        return torch.ones(len(entropies_N), dtype=torch.bool)
    return entropies_N >= entropy_threshold(entropies_N, share)


def weigh_mini_batch(
    groups: tuple[TrainGroup, ...],
    num_tokens_S: Tensor,
    weights_S: Tensor,
    config: RunConfig,
    *,
    surveyed: Surveyed | None,
) -> MiniBatch:
    """Computes the factors of a mini-batch from the number of each completion's tokens, [S] int64, and its weight."""
    num_counted_S = num_tokens_S
    if surveyed is not None:
        of_completions = surveyed.correction.is_rejected_C.split(num_tokens_S.tolist())
        num_counted_S = num_tokens_S - torch.stack([is_rejected_C.sum() for is_rejected_C in of_completions])
    factors_S = token_factors(
        config.loss.resolved_aggregation,
        num_counted_S,
        denominator=config.loss.denominator or config.sampling.max_completion_tokens,
        empty_sequences=config.loss.empty_sequences,
    )
    return MiniBatch(groups, factors_S * weights_S, int(num_tokens_S.sum()), int(num_counted_S.sum()), surveyed)


def token_factors(
    mode: str,
    num_tokens_S: Tensor,
    *,
    denominator: float | None = None,
    empty_sequences: Literal["skip", "count"] = "skip",
) -> Tensor:
    """Returns the factor of the loss of each completion's tokens, [S] float64; the loss is the sum of the products.

    The factors take into account all completions of the mini-batch, so the value and gradient of the loss do not depend
    on how its tokens are packed, cut into forwards or spread over ranks. No factor is a mean of means.

    With N tokens, S completions and n tokens in the token's completion: `token-mean` 1 / N (DAPO, arXiv:2503.14476);
    `seq-mean-token-mean` 1 / (S n) (GRPO, arXiv:2402.03300); `seq-mean-token-sum` 1 / S; `seq-mean-token-sum-norm` 1 /
    (S denominator) (Dr. GRPO, arXiv:2503.20783); `fixed-denominator` 1 / denominator. S includes completions without
    tokens only if `empty_sequences` is "count".
    """
    num_sequences = len(num_tokens_S) if empty_sequences == "count" else int((num_tokens_S > 0).sum())
    ones_S = torch.ones(len(num_tokens_S), dtype=torch.float64)
    match mode:
        case "token-mean":
            return ones_S / max(1, int(num_tokens_S.sum()))
        case "seq-mean-token-mean":
            return ones_S / num_tokens_S.clamp(min=1) / max(1, num_sequences)
        case "seq-mean-token-sum":
            return ones_S / max(1, num_sequences)
        case "seq-mean-token-sum-norm":
            assert denominator is not None
            return ones_S / (max(1, num_sequences) * denominator)
        case "fixed-denominator":
            assert denominator is not None
            return ones_S / denominator
    raise AssertionError(f"unknown aggregation {mode!r}")
