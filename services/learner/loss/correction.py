"""Correction for the gap between learner and sampling engine: importance weights, and filters that drop tokens.

d = proximal - behavior log-probability of a token; 0 if the engine reported no log-probability. A statistic of a
sequence covers one completion, never the row in which the completion is packed. No value of this module has a gradient.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions
from services.learner.loss.objectives.divergence import binary_kl
from shoal.config.tables.correction import CorrectionConfig, FilterConfig


@dataclass(frozen=True)
class Correction:
    """The correction of C tokens. Every field is [C]."""

    weights_C: Tensor
    """Factors of the policy loss for tokens that are not dropped, in the type of the log-probabilities."""
    is_truncated_C: Tensor
    """bool: the weight was bounded."""
    is_dropped_C: Tensor
    """bool: the token failed a filter."""
    is_dropped_low_C: Tensor
    """bool: the token failed a lower bound."""
    is_rejected_C: Tensor
    """bool: the token failed a filter that rejects; such a token counts neither in the loss nor in the divisor."""


def correct(
    config: CorrectionConfig,
    proximal_logprobs_C: Tensor,
    behavior_logprobs_C: Tensor,
    advantages_C: Tensor,
    completions: Completions,
) -> Correction:
    """Computes weights and dropped tokens from [C] log-probabilities of one type.

    A NaN in `behavior_logprobs_C` means unknown. With `correction.normalize`, pass all tokens of the step.
    """
    behavior_C = torch.where(torch.isnan(behavior_logprobs_C), proximal_logprobs_C, behavior_logprobs_C)
    gap_C = proximal_logprobs_C - behavior_C
    weights_C, is_truncated_C = _weigh(config, gap_C, completions)
    is_dropped_C, is_low_C, is_rejected_C = (torch.zeros_like(gap_C, dtype=torch.bool) for _ in range(3))
    for test in config.filters:
        statistic_C = filter_statistic(test, proximal_logprobs_C, behavior_C, completions)
        fails_low_C = torch.zeros_like(is_low_C) if test.low is None else statistic_C < test.low
        fails_C = fails_low_C if test.high is None else fails_low_C | (statistic_C > test.high)
        if test.only_harmful:
            fails_C = fails_C & (gap_C.sign() * advantages_C > 0)
        is_dropped_C = is_dropped_C | fails_C
        is_low_C = is_low_C | (fails_C & fails_low_C)
        if test.reject:
            is_rejected_C = is_rejected_C | fails_C
    return Correction(weights_C, is_truncated_C, is_dropped_C, is_low_C, is_rejected_C)


def _weigh(config: CorrectionConfig, gap_C: Tensor, completions: Completions) -> tuple[Tensor, Tensor]:
    """Returns the weights, [C], and whether each weight was bounded, [C] bool."""
    if config.weight == "none":
        return torch.ones_like(gap_C), torch.zeros_like(gap_C, dtype=torch.bool)
    if config.weight == "token":
        log_ratio_C = gap_C
    else:
        over = completions.sum if config.weight == "sequence" else completions.mean
        log_ratio_C = completions.spread(over(gap_C))
    ratio_C = torch.exp(log_ratio_C)
    weights_C = ratio_C if config.weight_low is None else ratio_C.clamp(min=config.weight_low)
    weights_C = weights_C.clamp(max=config.weight_high) if config.weight_high else weights_C
    is_truncated_C = weights_C != ratio_C
    if config.normalize and len(weights_C):
        # Use logarithms: without a bound a weight may be infinite, but its share of the mean is still a number.
        log_weights_C = torch.where(is_truncated_C, weights_C.log(), log_ratio_C)
        one_each = log_weights_C
        if config.weight != "token":  # A completion's weight counts once.
            one_each = completions.mean(log_weights_C)[completions.num_tokens() > 0]
        weights_C = torch.exp(log_weights_C - (one_each.logsumexp(0) - math.log(len(one_each))))
    return weights_C, is_truncated_C


def filter_statistic(
    test: FilterConfig, proximal_logprobs_C: Tensor, behavior_logprobs_C: Tensor, completions: Completions
) -> Tensor:
    """Computes the statistic that a filter tests, for each token or its completion, [C]. Inputs must not be NaN."""
    gap_C = proximal_logprobs_C - behavior_logprobs_C
    match test.statistic:
        case "ratio":
            # Exponentiate last, so that a sequence's ratio is the product, or the geometric mean.
            return torch.exp(_over(test.level, gap_C, completions))
        case "k2":
            values_C = gap_C.square() / 2
        case "k3":
            values_C = torch.expm1(gap_C) - gap_C
        case "tv":
            values_C = torch.expm1(gap_C).abs()
        case "binary_kl":
            values_C = binary_kl(behavior_logprobs_C, proximal_logprobs_C)
        case "probability_difference":
            values_C = torch.exp(proximal_logprobs_C) - torch.exp(behavior_logprobs_C)
        case "probability_distance":
            values_C = (torch.exp(proximal_logprobs_C) - torch.exp(behavior_logprobs_C)).abs()
    return _over(test.level, values_C, completions)


def _over(level: str, values_C: Tensor, completions: Completions) -> Tensor:
    match level:
        case "sequence_sum":
            return completions.spread(completions.sum(values_C))
        case "sequence_mean":
            return completions.spread(completions.mean(values_C))
        case "sequence_max":
            return completions.spread(completions.max(values_C))
    return values_C


def entropy_threshold(entropies_C: Tensor, share: float) -> float:
    """Returns the least entropy of the `share` of tokens with the highest entropy (arXiv:2506.01939).

    The entropy is interpolated between the two tokens at the quantile. `entropies_C` covers the whole step.
    """
    return float(np.quantile(entropies_C.detach().double().cpu().numpy(), 1 - share))


def is_off_policy(
    logprobs_C: Tensor, sampled_logprobs_C: Tensor, advantages_C: Tensor, completions: Completions, threshold: float
) -> Tensor:
    """Finds the tokens of negative advantage in unlikely completions, [C] bool (DeepSeek-V3.2, arXiv:2512.02556).

    A completion is unlikely if the mean of (sampled - policy log-probability) over its tokens is above the threshold.
    """
    mean_S = off_policy_divergence(logprobs_C, sampled_logprobs_C, completions)
    return (advantages_C < 0) & (completions.spread(mean_S) > threshold)


def off_policy_divergence(logprobs_C: Tensor, sampled_logprobs_C: Tensor, completions: Completions) -> Tensor:
    """Returns the mean of (sampled - policy log-probability) over each completion's tokens, [S]; NaN counts as 0."""
    return completions.mean(torch.nan_to_num(sampled_logprobs_C - logprobs_C.detach(), nan=0.0))
