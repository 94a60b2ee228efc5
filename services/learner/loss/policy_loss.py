"""The loss of the tokens of one packed row: the chosen objective, the correction, the KL term and the entropy bonus.

loss = sum over tokens of factor (weight x policy loss + kl_coef x KL) - entropy_coef x mean entropy. The factors come
from the mini-batch (`mini_batch.py`), so the losses of all rows on all ranks add up to the mini-batch's loss.

A dropped token (filters, off-policy mask, low entropy) loses its policy term, but still counts in the divisor and keeps
its KL. A rejected token leaves the loss altogether. Neither the correction's weights nor its filters have a gradient.
The entropy bonus is a mean over tokens for every aggregation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.loss.correction import Correction, correct, is_off_policy
from services.learner.loss.kl import token_kl
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import MiniBatch, Surveyed
from services.learner.loss.objectives import OBJECTIVES
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, known_baseline
from services.learner.loss.tensors import map_tensors
from services.learner.model.transfers import moved
from shoal.config import RunConfig


@dataclass(frozen=True)
class RowTokens:
    """The tokens of a row that count in the loss, with their values from the mini-batch. Every tensor is [C]."""

    where_C: Tensor
    """int64: the tokens' indices among the row's scored tokens."""
    behavior_logprobs_C: Tensor
    """The behavior log-probabilities; NaN if unknown."""
    advantages_C: Tensor
    rewards_C: Tensor
    factors_C: Tensor
    completions: Completions
    """The sequences, as in `LossTokens`."""
    surveyed: Surveyed | None

    def part(self, at: Tensor) -> "RowTokens":
        """Returns the tokens at `at`."""
        picked: RowTokens = map_tensors(self, lambda values: values[at])
        return picked

    def to(self, device: torch.device) -> "RowTokens":
        on_device: RowTokens = map_tensors(self, lambda values: moved(values, device))
        return on_device


@dataclass(frozen=True)
class RowLoss:
    """The loss of a row. Every tensor but `loss` is [C], without gradient."""

    loss: Tensor
    """The row's share of the mini-batch's loss, a scalar with gradient."""
    tokens: RowTokens
    policy: PolicyLoss
    policy_loss_C: Tensor
    """The policy loss of each token, weighted."""
    logprobs_C: Tensor
    baseline_logprobs_C: Tensor
    entropy_C: Tensor
    correction: Correction
    is_dropped_C: Tensor
    """bool: the policy term was dropped, for any reason."""
    reference_logprobs_C: Tensor | None
    kl_C: Tensor | None
    """The KL of each token, not weighted."""


def pick_tokens(mini_batch: MiniBatch, tokens: LossTokens, at_C: Tensor) -> RowTokens:
    """Picks, of a row's tokens, those that count.

    `at_C` has the index in the mini-batch of each scored token; -1 marks a token that is not in `tokens`.
    """
    where_C = torch.nonzero(at_C >= 0).squeeze(1)
    factors_C = tokens.completions.spread(mini_batch.factors_S).to(tokens.advantages_N.dtype)
    surveyed = None if mini_batch.surveyed is None else mini_batch.surveyed.part(at_C[where_C])
    picked = RowTokens(
        where_C=where_C,
        behavior_logprobs_C=tokens.behavior_logprobs_N,
        advantages_C=tokens.advantages_N,
        rewards_C=tokens.rewards_N,
        factors_C=factors_C,
        completions=tokens.sequences,
        surveyed=surveyed,
    )
    if surveyed is None or not surveyed.correction.is_rejected_C.any():
        return picked
    return picked.part(~surveyed.correction.is_rejected_C)


def row_loss(
    tokens: RowTokens,
    logprobs_C: Tensor,
    entropy_C: Tensor,
    reference_logprobs_C: Tensor | None,
    config: RunConfig,
    *,
    kl_coef: float,
    num_counted: int,
) -> RowLoss:
    """Computes the loss of a row from [C] log-probabilities (with gradient) and entropies of all its scored tokens.

    The entropies need a gradient only with `loss.entropy_coef`. `num_counted` is `MiniBatch.num_counted`.
    """
    live_C, entropy_C = logprobs_C[tokens.where_C], entropy_C[tokens.where_C]
    detached_C = live_C.detach()
    surveyed = tokens.surveyed
    proximal_C = detached_C if surveyed is None else surveyed.proximal_logprobs_N
    behavior_C = known_baseline(tokens.behavior_logprobs_C, detached_C)
    baseline_C = behavior_C if config.loss.baseline == "behavior" else proximal_C
    policy_tokens = PolicyTokens(
        live_C, detached_C, baseline_C, tokens.advantages_C, tokens.rewards_C, tokens.completions
    )
    policy = OBJECTIVES[config.loss.objective](policy_tokens, config.loss)
    if surveyed is None:
        correction = correct(
            config.correction, proximal_C, tokens.behavior_logprobs_C, tokens.advantages_C, tokens.completions
        )
        is_dropped_C = correction.is_dropped_C
    else:
        correction = surveyed.correction
        is_dropped_C = correction.is_dropped_C | ~surveyed.is_kept_N
    if config.loss.off_policy_mask is not None:
        is_dropped_C = is_dropped_C | is_off_policy(
            detached_C, tokens.behavior_logprobs_C, tokens.advantages_C, tokens.completions, config.loss.off_policy_mask
        )
    # Zero the weight too: without a bound the weight of a long completion may be infinite, and 0 x infinity is NaN.
    weights_C = torch.where(is_dropped_C, 0.0, correction.weights_C)
    policy_loss_C = torch.where(is_dropped_C, 0.0, policy.loss_C * weights_C)
    loss_C, kl_C, reference_C = policy_loss_C, None, None
    if reference_logprobs_C is not None:
        reference_C = reference_logprobs_C[tokens.where_C]
        kl_C = token_kl(policy_tokens, reference_C, config.kl)
        loss_C = policy_loss_C + kl_coef * kl_C if kl_coef else loss_C
    loss = (loss_C * tokens.factors_C).sum()
    if config.loss.entropy_coef:
        loss = loss - config.loss.entropy_coef * entropy_C.sum() / max(1, num_counted)
    return RowLoss(
        loss=loss,
        tokens=tokens,
        policy=policy,
        policy_loss_C=policy_loss_C.detach(),
        logprobs_C=detached_C,
        baseline_logprobs_C=baseline_C,
        entropy_C=entropy_C.detach(),
        correction=correction,
        is_dropped_C=is_dropped_C,
        reference_logprobs_C=reference_C,
        kl_C=None if kl_C is None else kl_C.detach(),
    )
