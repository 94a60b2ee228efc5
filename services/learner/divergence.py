"""Divergences of one token's probability under two policies."""

import torch
from torch import Tensor

_LEAST_PROBABILITY = 1e-6


def binary_kl(p_logprobs_C: Tensor, q_logprobs_C: Tensor) -> Tensor:
    """[C] KL(p || q) of a token against all others: p log(p / q) + (1 - p) log((1 - p) / (1 - q)), at least 0.

    Probabilities are held within 1e-6 and 1 - 1e-6.
    """
    p_C = torch.exp(p_logprobs_C).clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    q_C = torch.exp(q_logprobs_C).clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return p_C * torch.log(p_C / q_C) + (1 - p_C) * torch.log((1 - p_C) / (1 - q_C))
