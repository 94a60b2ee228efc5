"""Aggregation of token losses into one number: a factor for each token, so that the loss is a weighted sum.

The factors come from the whole mini-batch, which every rank knows. So value and gradient do not depend on how the
tokens are packed, cut into forwards or spread over ranks. No mean of means is ever taken.
"""

from typing import Literal

import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions


def token_factors(
    mode: str,
    completions: Completions,
    *,
    denominator: float | None = None,
    empty_sequences: Literal["skip", "count"] = "skip",
) -> Tensor:
    """Returns the factor of each token's loss, [C] float64; the loss is the sum of the products.

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
