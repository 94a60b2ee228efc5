"""How far the policy is from a reference, token by token (joschu.net/blog/kl-approx).

With d = log pi - reference, held within plus and minus `kl.input_clamp`: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1,
abs = |d|, ratio_k1 = r d with r = exp(log pi - baseline); then held within plus and minus `kl.output_clamp`. k1 and k3
are unbiased estimates of KL(policy || reference), of little use as they stand as a loss: the expected gradient of k1
is 0, that of k3 is the other direction's. The forms of `kl.gradient` mend that; the value stays.
"""

import torch
from torch import Tensor

from services.learner.objectives.tokens import PolicyTokens
from shoal.config.loss import KlConfig

_MOST_OFF_POLICY = 10.0
"""Largest ratio that weighs the gradient of `off_policy`."""


def token_kl(tokens: PolicyTokens, reference_logprobs_C: Tensor, config: KlConfig) -> Tensor:
    """[C] the estimate, in nats, with the gradient that `kl.gradient` names.

    `plain`: its own. `straight_through`: d, that of k2. `off_policy`: min(r, 10) d. `bias_corrected`: the estimate is
    multiplied by r, with its gradient. `score_function`: its own, and the estimate times that of log pi.
    """
    distance_C = tokens.logprobs_C - reference_logprobs_C
    estimate_C = _estimate(distance_C, tokens.log_ratio_C, config)
    match config.gradient:
        case "straight_through":
            return _with_gradient_of(distance_C.square() / 2, estimate_C)
        case "off_policy":
            weights_C = torch.exp(tokens.held_log_ratio_C).clamp(max=_MOST_OFF_POLICY)
            return _with_gradient_of(weights_C * distance_C.square() / 2, estimate_C)
        case "bias_corrected":
            return torch.exp(tokens.log_ratio_C) * estimate_C
        case "score_function":
            return torch.exp(tokens.logprobs_C - tokens.held_logprobs_C) * estimate_C
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
            # expm1: near 0 the sum would be all rounding.
            estimate_C = torch.expm1(-distance_C) + distance_C
        case "abs":
            estimate_C = distance_C.abs()
        case "ratio_k1":
            estimate_C = torch.exp(log_ratio_C) * distance_C
    if config.output_clamp is not None:
        estimate_C = estimate_C.clamp(-config.output_clamp, config.output_clamp)
    return estimate_C


def _with_gradient_of(other_C: Tensor, value_C: Tensor) -> Tensor:
    # The difference first: it is exactly 0, where a large other would round the value away.
    return value_C.detach() + (other_C - other_C.detach())
