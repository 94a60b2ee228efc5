"""The `[correction]` table: corrects the gap between the engine that samples and the learner that trains."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import Section

Level = Literal["token", "sequence_sum", "sequence_mean", "sequence_max"]


class FilterConfig(Section):
    """One test of tokens. d is the proximal minus the behavior log-probability, of a token or over its sequence."""

    statistic: Literal["ratio", "k2", "k3", "tv", "binary_kl", "probability_difference", "probability_distance"] = (
        "ratio"
    )
    """Statistic that is tested. `ratio` is exp(d), `k2` is d^2/2, `k3` is exp(d) - d - 1, and `tv` is |exp(d) - 1|.
    `binary_kl` is the KL divergence of the token against all other tokens (p log(p/q) + (1-p) log((1-p)/(1-q)), with p
    behavior and q proximal). `probability_difference` is exp(proximal) - exp(behavior), and `probability_distance` is
    the absolute value of this difference."""
    level: Level = "token"
    """Whether there is one value per token or one value per completion: the sum, the mean or the maximum over the
    completion's tokens. The ratio is exponentiated last: exp(sum d) is the product, exp(mean d) the geometric mean."""
    low: float | None = None
    """A token or completion with a value below this bound fails."""
    high: float | None = None
    """A token or completion with a value above this bound fails."""
    only_harmful: bool = False
    """Drop a failing token only if the step would push the token further away: d and the advantage have the same sign
    (VACO, arXiv:2603.01365)."""
    reject: bool = False
    """Also remove dropped tokens from the divisor of the loss."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("give low, high or both: without a bound this filter drops no token")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.statistic == "ratio" and self.low is not None and self.low >= 1:
            raise ValueError(f"low ({self.low}) must be below 1: a ratio of 1 means no gap")
        if self.statistic == "ratio" and self.high is not None and self.high <= 1:
            raise ValueError(f"high ({self.high}) must be above 1: a ratio of 1 means no gap")
        return self


class CorrectionConfig(Section):
    """Importance weights exp(proximal - behavior) on the policy loss, without a gradient. A token without a behavior
    log-probability has d = 0, and the metrics count such tokens."""

    weight: Literal["none", "token", "sequence", "geometric"] = "none"
    """Weight of a token. `token` is the token's own ratio, `sequence` the product of the ratios in its completion, and
    `geometric` the geometric mean of these ratios."""
    weight_low: float | None = Field(default=None, gt=0, lt=1)
    """Lower bound of the weights."""
    weight_high: float = Field(default=2.0, ge=0)
    """Upper bound of the weights (TIS), above 1. 0 sets no bound."""
    normalize: bool = False
    """Divide the weights by their mean over the tokens of the step. With `sequence` and `geometric` the mean is over
    the completions of the step."""
    filters: list[FilterConfig] = Field(default_factory=list)
    """Tests of tokens. A token that fails any test is dropped (IcePop: ratio, token, low 0.5, high 5)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if 0 < self.weight_high <= 1:
            raise ValueError(f"weight_high ({self.weight_high}) must be above 1, or 0 for no bound")
        if self.weight == "none":
            for name in ("weight_low", "weight_high", "normalize"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} bounds or scales the weights, but weight is none: set weight, or remove {name}"
                    )
        return self

    @property
    def is_on(self) -> bool:
        """Whether the correction does anything."""
        return self.weight != "none" or bool(self.filters)
