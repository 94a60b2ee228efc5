"""The gap between learner and engine: the log-probabilities of sampled tokens by either.

At staleness 0 the gap shows how learner and engine differ: numerics, a wrong temperature, weights that did not arrive.
Above staleness 0 the gap also contains the train steps between sampling and training. Each rank keeps sums over its
tokens, and all metrics come from the sums over the ranks.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.objectives.completions import Completions
from services.learner.ranks.process_group import ProcessGroup

_SUMS = (
    "known", "unknown", "distance", "distance_squared", "gap", "k3", "reverse_kl", "chi2", "weight", "weight_squared",
    "num_weights",
)  # fmt: skip
_MAX_RATIO = 2.0
"""Bound of the ratios in the effective sample size, when no weights are applied."""
_MAX_EXPONENT = 700.0
"""The largest exponent. The limit keeps the values of a very unlikely completion finite."""


class GapSums:
    """Sums over tokens of S completions, with d = learner - behavior log-probability. A NaN in `behavior` is unknown.

    Add tokens before the weights change.
    """

    def __init__(self, num_completions: int) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        self._largest = torch.zeros(1, dtype=torch.float64)
        self._by_completion_3S = torch.zeros(3, num_completions, dtype=torch.float64)
        """For each completion the number of known tokens, and their log-probabilities by learner and by engine."""

    @classmethod
    def of(cls, rows: Iterable[tuple[Tensor, LossTokens]], num_completions: int) -> "GapSums":
        """Sums over rows, each with the learner's log-probabilities, on any device, and its tokens."""
        sums = cls(num_completions)
        for learner_C, tokens in rows:
            sums.add(learner_C.cpu(), tokens.behavior_logprobs_N, tokens.completions)
        return sums

    def add(
        self, learner_C: Tensor, behavior_C: Tensor, completions: Completions, weights_C: Tensor | None = None
    ) -> None:
        """Adds tokens. `weights_C` are the weights of all tokens, also of unknown ones; by default min(exp(d), 2)."""
        is_known_C = ~torch.isnan(behavior_C)
        learner_C, behavior_C = learner_C[is_known_C].double(), behavior_C[is_known_C].double()
        gap_C = learner_C - behavior_C
        weights_C = torch.exp(gap_C).clamp(max=_MAX_RATIO) if weights_C is None else weights_C.double()
        sums = {
            "known": torch.tensor(float(len(gap_C))),
            "unknown": (~is_known_C).sum(),
            "distance": gap_C.abs().sum(),
            "distance_squared": gap_C.square().sum(),
            "gap": gap_C.sum(),
            "k3": (_expm1(gap_C) - gap_C).sum(),
            "reverse_kl": (torch.exp(behavior_C) * -gap_C).sum(),
            "chi2": _expm1(2 * gap_C).sum(),
            "weight": weights_C.sum(),
            "weight_squared": weights_C.square().sum(),
            "num_weights": torch.tensor(float(len(weights_C))),
        }
        self._sums += torch.stack([sums[name].double() for name in _SUMS])
        if len(gap_C):
            self._largest = torch.maximum(self._largest, gap_C.abs().max())
        values_3C = torch.stack([torch.ones_like(gap_C), learner_C, behavior_C])
        self._by_completion_3S.index_add_(1, completions.index_C[is_known_C], values_3C)

    def all_reduce(self, process_group: ProcessGroup) -> "GapSums":
        """Returns the sums over all ranks."""
        reduced = GapSums(self._by_completion_3S.shape[1])
        flat = process_group.all_reduce(torch.cat([self._sums, self._by_completion_3S.flatten()]))
        reduced._sums, by_completion = flat[: len(_SUMS)], flat[len(_SUMS) :]
        reduced._by_completion_3S = by_completion.view_as(self._by_completion_3S)
        reduced._largest = process_group.all_reduce(self._largest, maximum=True)
        return reduced

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the gap by name; those of the mismatch only if a log-probability is known."""
        sums = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        num = sums["known"]
        mean = sums["distance"] / max(1.0, num)
        # Rounding may leave equal gaps a tiny negative sum.
        squares = max(0.0, sums["distance_squared"] - num * mean**2)
        metrics = {
            "val/logprob_gap_mean": mean,
            "val/logprob_gap_max": float(self._largest),
            "val/logprob_gap_std": (squares / (num - 1)) ** 0.5 if num > 1 else 0.0,
            "val/num_missing_behavior_logprobs": sums["unknown"],
        }
        return metrics | {f"mismatch/{name}": value for name, value in self.mismatch().items()}

    def mismatch(self, *, count_empty: bool = False) -> dict[str, float]:
        """Returns the metrics of the mismatch; {} if no behavior log-probability is known.

        `kl` is the mean of -d, an estimate of KL(behavior || learner); `k3` that of exp(d) - d - 1; `reverse_kl` that
        of -exp(behavior) d; `chi2_token` of exp(2 d) - 1, `chi2_sequence` over completions of exp(2 sum d) - 1; the
        perplexities are means over completions of exp(-mean log-prob), `log_perplexity_difference` of mean behavior -
        mean learner. With w the weights: `weight_mean`, and `effective_sample_size` 1 / mean((w / mean w)^2), the share
        of the tokens that would weigh as much with equal weights. With `count_empty` a completion without tokens counts
        with the value 0, as in verl.
        """
        sums = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        num = sums["known"]
        if not num:
            return {}
        num_S, learner_S, behavior_S = self._by_completion_3S[:, (self._by_completion_3S[0] > 0) | count_empty]
        gap_S, num_S = learner_S - behavior_S, num_S.clamp(min=1)
        weight = sums["weight"] / sums["num_weights"]
        mean_square = sums["weight_squared"] / sums["num_weights"]
        return {
            "kl": -sums["gap"] / num,
            "k3": sums["k3"] / num,
            "reverse_kl": sums["reverse_kl"] / num,
            "chi2_token": sums["chi2"] / num,
            "chi2_sequence": float(_expm1(2 * gap_S).mean()),
            "learner_perplexity": float(_expm1(-learner_S / num_S).mean()) + 1,
            "engine_perplexity": float(_expm1(-behavior_S / num_S).mean()) + 1,
            "log_perplexity_difference": float((-gap_S / num_S).mean()),
            "weight_mean": weight,
            "effective_sample_size": weight**2 / mean_square if weight else 0.0,
        }


def _expm1(exponents: Tensor) -> Tensor:
    return torch.expm1(exponents.clamp(max=_MAX_EXPONENT))
