"""The KL divergence from the reference policy as a term of the loss: its estimators and their gradients."""

import torch
from torch import Tensor

from services.learner.loss.objectives.tokens import PolicyTokens
from shoal.config.tables.kl import KlConfig

_MAX_OFF_POLICY_RATIO = 10.0
"""The largest weight of the gradient if `kl.gradient` is "off_policy"."""


def token_kl(tokens: PolicyTokens, reference_logprobs_C: Tensor, config: KlConfig) -> Tensor:
    """Estimates the KL of each token from the reference, [C] in nats (joschu.net/blog/kl-approx).

    With d = log pi - reference, clamped to +-`kl.input_clamp`: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|,
    ratio_k1 = r d with r = exp(log pi - baseline). The estimate is then clamped to +-`kl.output_clamp`. k1 and k3 are
    unbiased estimates of KL(policy || reference), but poor losses as they are: the expected gradient of k1 is 0, and
    that of k3 belongs to the divergence in the other direction.

    `kl.gradient` names the gradient of that value (only `bias_corrected` changes the value as well). `plain`: the
    estimate's own gradient. `straight_through`: d, the gradient of k2. `off_policy`: min(r, 10) d. `bias_corrected`:
    the estimate is multiplied by r, which has a gradient too. `score_function`: the estimate's own gradient plus the
    estimate times the gradient of log pi.
    """
    distance_C = tokens.logprobs_C - reference_logprobs_C
    estimate_C = _estimate(distance_C, tokens.log_ratio_C, config)
    match config.gradient:
        case "straight_through":
            return _with_gradient_of(distance_C.square() / 2, estimate_C)
        case "off_policy":
            weights_C = torch.exp(tokens.detached_log_ratio_C).clamp(max=_MAX_OFF_POLICY_RATIO)
            return _with_gradient_of(weights_C * distance_C.square() / 2, estimate_C)
        case "bias_corrected":
            return torch.exp(tokens.log_ratio_C) * estimate_C
        case "score_function":
            return torch.exp(tokens.logprobs_C - tokens.detached_logprobs_C) * estimate_C
        case _:
            return estimate_C


def _estimate(distance_C: Tensor, log_ratio_C: Tensor, config: KlConfig) -> Tensor:
    if config.input_clamp is not None:
        distance_C = distance_C.clamp(-config.input_clamp, config.input_clamp)
    match config.estimator:
        case "k1":
            estimate_C = distance_C
        case "k2":
            estimate_C = distance_C.square() / 2
        case "k3":
            # Use expm1: near 0 the plain sum would be only rounding error.
            estimate_C = torch.expm1(-distance_C) + distance_C
        case "abs":
            estimate_C = distance_C.abs()
        case "ratio_k1":
            estimate_C = torch.exp(log_ratio_C) * distance_C
    if config.output_clamp is not None:
        estimate_C = estimate_C.clamp(-config.output_clamp, config.output_clamp)
    return estimate_C


def _with_gradient_of(other_C: Tensor, value_C: Tensor) -> Tensor:
    # Subtract first: the difference is exactly 0. Adding a large `other_C` first would round the value away.
    return value_C.detach() + (other_C - other_C.detach())
