"""The mismatch between the learner's log-probabilities and those that the engine sampled with. Always measured.

At staleness 0 it shows how the two implementations differ: numerics, a wrong temperature, weights that did not arrive.
Otherwise it also contains the train steps between sampling and training.
"""

import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions

_MAX_RATIO = 2.0
"""Bound of the ratios in the effective sample size, when no weights are applied."""
_MAX_EXPONENT = 700.0
"""The largest exponent; it keeps the values of a very unlikely completion finite."""


def mismatch_metrics(
    learner_logprobs_C: Tensor,
    behavior_logprobs_C: Tensor,
    completions: Completions,
    weights_C: Tensor | None = None,
    *,
    count_empty: bool = False,
) -> dict[str, float]:
    """Measures the mismatch from [C] log-probabilities; returns {} if no behavior log-probability is known.

    Tokens with a NaN in `behavior` are left out, but not from `weights_C`.

    With d = learner - behavior: `kl` is the mean of -d, an estimate of KL(behavior || learner); `k3` that of exp(d) -
    d - 1; `reverse_kl` that of -exp(behavior) d; `chi2_token` of exp(2 d) - 1, `chi2_sequence` over completions of
    exp(2 sum d) - 1; the perplexities are means over completions of exp(-mean log-prob), `log_perplexity_difference`
    of mean behavior - mean learner. With w the [C] weights, or min(exp(d), 2) without: `weight_mean`, and
    `effective_sample_size` 1 / mean((w / mean w)^2), the share of the tokens that would weigh as much with equal
    weights. With `count_empty` a completion without tokens counts with the value 0, as in verl.
    """
    known_C = ~torch.isnan(behavior_logprobs_C)
    learner_C, behavior_C = learner_logprobs_C[known_C].double(), behavior_logprobs_C[known_C].double()
    if not len(learner_C):
        return {}
    of_known = Completions(completions.index_C[known_C], completions.num)
    is_counted_S = (of_known.num_tokens() > 0) | count_empty
    gap_C = learner_C - behavior_C
    learner_S, behavior_S = (of_known.mean(values)[is_counted_S] for values in (learner_C, behavior_C))
    weights_C = torch.exp(gap_C).clamp(max=_MAX_RATIO) if weights_C is None else weights_C.double()
    mean = float(weights_C.mean())
    return {
        "kl": float(-gap_C.mean()),
        "k3": float((_expm1(gap_C) - gap_C).mean()),
        "reverse_kl": float((torch.exp(behavior_C) * -gap_C).mean()),
        "chi2_token": float(_expm1(2 * gap_C).mean()),
        "chi2_sequence": float(_expm1(2 * of_known.sum(gap_C)[is_counted_S]).mean()),
        "learner_perplexity": float(_expm1(-learner_S).mean()) + 1,
        "engine_perplexity": float(_expm1(-behavior_S).mean()) + 1,
        "log_perplexity_difference": float((behavior_S - learner_S).mean()),
        "weight_mean": mean,
        "effective_sample_size": 1 / float((weights_C / mean).square().mean()) if mean else 0.0,
    }


def _expm1(exponents: Tensor) -> Tensor:
    return torch.expm1(exponents.clamp(max=_MAX_EXPONENT))
