"""The `[correction]` table: the gap between the engine that sampled and the learner that trains."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section

Level = Literal["token", "sequence_sum", "sequence_mean", "sequence_max"]


class FilterConfig(Section):
    """One test that tokens have to pass. d = proximal - behavior log-probability, of a token or over its sequence."""

    statistic: Literal["ratio", "k2", "k3", "tv", "binary_kl", "probability_difference", "probability_distance"] = (
        "ratio"
    )
    """exp(d); d^2/2; exp(d) - d - 1; |exp(d) - 1|; the KL divergence of the token against all others (p log(p/q) +
    (1-p) log((1-p)/(1-q)), p behavior and q proximal); exp(proximal) - exp(behavior); its absolute value."""
    level: Level = "token"
    """Of each token; or one value for a whole completion: from the sum, the mean, or the largest over its tokens. The
    ratio is exponentiated last: exp(sum d) is the completion's ratio, exp(mean d) its geometric mean."""
    low: float | None = None
    """Below this a token, or its completion, fails."""
    high: float | None = None
    """Above this it fails."""
    only_harmful: bool = False
    """Of what fails, drop only tokens that the step would push further off: d and the advantage of one sign (VACO,
    arXiv:2603.01365)."""
    reject: bool = False
    """Dropped tokens leave the loss's divisor too; else they keep their place in it."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("give low or high")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.statistic == "ratio" and self.low is not None and self.low >= 1:
            raise ValueError(f"low ({self.low}) must be below 1: a ratio of 1 is no gap at all")
        if self.statistic == "ratio" and self.high is not None and self.high <= 1:
            raise ValueError(f"high ({self.high}) must be above 1: a ratio of 1 is no gap at all")
        return self


class CorrectionConfig(Section):
    """Importance weights exp(proximal - behavior) on the policy loss, per completion, without a gradient of their own.
    A token whose behavior log-probability is missing has d = 0 and is counted."""

    weight: Literal["none", "token", "sequence", "geometric"] = "none"
    """Each token's ratio; the completion's product of them; or their geometric mean."""
    weight_low: float | None = Field(default=None, gt=0, lt=1)
    """Weights are raised to this at least."""
    weight_high: float = Field(default=2.0, ge=0)
    """Weights are truncated to this (TIS), which is above 1; 0 leaves them as they are."""
    normalize: bool = False
    """Divide the weights by their mean over the step: over its tokens, or with sequence and geometric weights over
    its completions."""
    filters: list[FilterConfig] = Field(default_factory=list)
    """Tests; a token that fails any is dropped (IcePop: ratio, token, low 0.5, high 5)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if 0 < self.weight_high <= 1:
            raise ValueError(f"weight_high ({self.weight_high}) must be above 1, or 0 for no bound")
        if self.weight == "none":
            for name in ("weight_low", "weight_high", "normalize"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} bounds or scales the weights, and weight is none: set weight or drop it")
        return self

    @property
    def is_on(self) -> bool:
        """Whether anything is corrected."""
        return self.weight != "none" or bool(self.filters)
