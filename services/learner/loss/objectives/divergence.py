"""Divergences of one token's probability under two policies."""

import torch
from torch import Tensor

_MIN_PROBABILITY = 1e-6


def binary_kl(p_logprobs_C: Tensor, q_logprobs_C: Tensor) -> Tensor:
    """Computes KL(p || q) of a token against all others, [C]: p log(p / q) + (1 - p) log((1 - p) / (1 - q)) >= 0.

    Probabilities are clamped to the range from 1e-6 to 1 - 1e-6.
    """
    p_C = torch.exp(p_logprobs_C).clamp(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    q_C = torch.exp(q_logprobs_C).clamp(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    return p_C * torch.log(p_C / q_C) + (1 - p_C) * torch.log((1 - p_C) / (1 - q_C))
