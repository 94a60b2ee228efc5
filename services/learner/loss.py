"""The GRPO loss (arXiv:2402.03300), token by token.

What it is: PPO's clipped surrogate with an upper clip of its own (clip-higher: DAPO, arXiv:2503.14476), on the ratio
to the policy that *sampled* each token, plus a k3 estimate of KL(policy || reference) (joschu.net/blog/kl-approx).
What it is not: no second "old" policy is recomputed; the engine's log-probabilities are the behavior policy. There
is no value function and no entropy bonus.

The caller averages over the completion tokens of the whole mini-batch, on all ranks (DAPO's token-level loss), so
neither packing nor the number of ranks changes the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLosses:
    """[C] each, float32; C tokens. Only `loss_C` carries a gradient."""

    loss_C: Tensor
    """What is to be minimised: the policy loss and the weighted KL."""
    policy_loss_C: Tensor
    log_ratio_C: Tensor
    """log policy - log behavior; 0 where the behavior is unknown."""
    is_clipped_low_C: Tensor
    """Where the ratio is below the range and clipping it changed the loss (negative advantage)."""
    is_clipped_high_C: Tensor
    """Where the ratio is above the range and clipping it changed the loss (positive advantage)."""
    log_reference_ratio_C: Tensor | None
    """log policy - log reference; None without a reference."""
    kl_C: Tensor | None
    """k3 estimate of KL(policy || reference)."""


def grpo_loss(
    logprobs_C: Tensor,
    behavior_logprobs_C: Tensor,
    advantages_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    reference_logprobs_C: Tensor | None = None,
    kl_coef: float = 0.0,
) -> TokenLosses:
    """The loss of each token.

    With ratio r = exp(logprobs - behavior) and advantage A: max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)
    + kl_coef * (exp(d) - d - 1), d = reference - logprobs. A behavior log-probability of NaN means unknown: the ratio
    then is 1, with the gradient of an on-policy token.
    """
    known_C = torch.where(torch.isnan(behavior_logprobs_C), logprobs_C.detach(), behavior_logprobs_C)
    log_ratio_C = logprobs_C - known_C
    ratio_C = torch.exp(log_ratio_C)
    unclipped_C = -ratio_C * advantages_C
    clipped_C = -torch.clamp(ratio_C, 1 - clip_low, 1 + clip_high) * advantages_C
    policy_loss_C = torch.maximum(unclipped_C, clipped_C)
    loss_C = policy_loss_C
    log_reference_ratio_C = kl_C = None
    if reference_logprobs_C is not None:
        log_reference_ratio_C = logprobs_C - reference_logprobs_C
        kl_C = torch.exp(-log_reference_ratio_C) + log_reference_ratio_C - 1
        loss_C = policy_loss_C + kl_coef * kl_C
    with torch.no_grad():
        is_clipped_low_C = (ratio_C < 1 - clip_low) & (advantages_C < 0)
        is_clipped_high_C = (ratio_C > 1 + clip_high) & (advantages_C > 0)
    return TokenLosses(
        loss_C=loss_C,
        policy_loss_C=policy_loss_C.detach(),
        log_ratio_C=log_ratio_C.detach(),
        is_clipped_low_C=is_clipped_low_C,
        is_clipped_high_C=is_clipped_high_C,
        log_reference_ratio_C=None if log_reference_ratio_C is None else log_reference_ratio_C.detach(),
        kl_C=None if kl_C is None else kl_C.detach(),
    )
