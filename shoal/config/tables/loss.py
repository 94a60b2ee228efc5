"""The `[loss]` table: the loss that the learner minimizes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import OptionOf, Section

Objective = Literal[
    "ppo_clip",
    "cispo",
    "gspo",
    "luspo",
    "sapo",
    "gmpo",
    "vespo",
    "policy_gradient",
    "truncated_is",
    "topr",
    "kimi15",
    "dppo_tv",
    "dppo_kl",
]
Aggregation = Literal[
    "auto", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "fixed-denominator"
]


class LossConfig(Section):
    objective: Objective = "ppo_clip"
    """The policy's objective; docs/algorithms.md gives the formula and paper of each. Options of another objective are
    refused."""
    baseline: Literal["behavior", "proximal"] = "behavior"
    """Denominator of the ratio: the engine's log-probabilities of the sampled tokens (`behavior`), or the learner's,
    computed before the first optimizer step of a train step (`proximal`). `[correction]` needs `proximal`."""
    clip_low: Annotated[float, OptionOf("ppo_clip", "cispo", "gspo", "luspo")] = Field(default=0.2, ge=0, le=1)
    """Ratios below 1 - clip_low are clipped (ppo_clip, gspo, luspo, cispo with `cispo_lower`)."""
    clip_high: Annotated[float, OptionOf("ppo_clip", "cispo", "gspo", "luspo")] = Field(default=0.28, ge=0)
    """Ratios above 1 + clip_high are clipped (clip-higher: DAPO, arXiv:2503.14476)."""
    dual_clip: Annotated[float | None, OptionOf("ppo_clip", "gspo", "luspo")] = Field(default=None, gt=1)
    """Upper bound of a token's loss where the advantage is negative, as a multiple of the advantage
    (arXiv:1912.09729)."""
    cispo_lower: Annotated[bool, OptionOf("cispo")] = False
    """CISPO: also keep the ratio above 1 - clip_low."""
    cispo_cap: Annotated[float | None, OptionOf("cispo")] = Field(default=None, gt=0)
    """CISPO: largest ratio, instead of 1 + clip_high."""
    cispo_unified_mask: Annotated[bool, OptionOf("cispo")] = False
    """CISPO: drop the tokens that PPO would clip."""
    ratio_low: Annotated[float, OptionOf("truncated_is", "topr")] = Field(default=0.0, ge=0)
    """Smallest weight of a token (truncated_is, topr)."""
    ratio_high: Annotated[float, OptionOf("truncated_is", "topr")] = Field(default=1.0, gt=0)
    """Largest weight of a token (truncated_is, topr)."""
    sapo_tau_positive: Annotated[float, OptionOf("sapo")] = Field(default=1.0, gt=0)
    """SAPO: steepness of the gate where the advantage is positive."""
    sapo_tau_negative: Annotated[float, OptionOf("sapo")] = Field(default=1.05, gt=0)
    """SAPO: steepness of the gate elsewhere."""
    gmpo_log_clip_low: Annotated[float, OptionOf("gmpo")] = Field(default=0.4, ge=0)
    """GMPO: lower bound of the log-ratio, negated, where the advantage is negative."""
    gmpo_log_clip_high: Annotated[float, OptionOf("gmpo")] = Field(default=0.4, ge=0)
    """GMPO: upper bound of the log-ratio where the advantage is positive."""
    vespo_k_positive: Annotated[float, OptionOf("vespo")] = Field(default=2.0, ge=0)
    """VESPO: exponent of the sequence's weight where the advantage is positive."""
    vespo_lambda_positive: Annotated[float, OptionOf("vespo")] = Field(default=3.0, ge=0)
    """VESPO: decay of the weight where the advantage is positive."""
    vespo_k_negative: Annotated[float, OptionOf("vespo")] = Field(default=3.0, ge=0)
    """VESPO: exponent of the sequence's weight where the advantage is negative."""
    vespo_lambda_negative: Annotated[float, OptionOf("vespo")] = Field(default=2.0, ge=0)
    """VESPO: decay of the weight where the advantage is negative."""
    topr_positive_weight: Annotated[float, OptionOf("topr")] = Field(default=1.0, ge=0)
    """TOPR: weight of completions with a positive reward."""
    topr_negative_weight: Annotated[float, OptionOf("topr")] = Field(default=1.0, ge=0)
    """TOPR: weight of the other completions."""
    kimi15_tau: Annotated[float, OptionOf("kimi15")] = Field(default=0.1, ge=0)
    """Kimi 1.5: weight of half the squared log-ratio."""
    dppo_divergence_low: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=0.15, ge=0)
    """DPPO: drop tokens that have become less likely by more divergence than this, if the step would make them even
    less likely."""
    dppo_divergence_high: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=0.15, ge=0)
    """DPPO: the same bound for tokens that have become more likely."""
    dppo_ratio_cap: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=20.0, gt=0)
    """DPPO: largest ratio."""
    aggregation: Aggregation = "auto"
    """How token losses are aggregated to one number. `auto` depends on the objective: seq-mean-token-mean for gspo,
    sapo and gmpo, seq-mean-token-sum for luspo, else token-mean over the whole mini-batch (DAPO)."""
    denominator: float | None = Field(default=None, gt=0)
    """Divisor of the sum with "fixed-denominator", or of each sequence's sum with "seq-mean-token-sum-norm" (where
    unset is `sampling.max_completion_tokens`, as in Dr. GRPO)."""
    empty_sequences: Literal["skip", "count"] = "skip"
    """Whether a sequence mean counts completions without any token that counts."""
    entropy_coef: float = 0.0
    """Weight of the policy's mean entropy, which is subtracted from the loss."""
    top_entropy_share: float = Field(default=1.0, gt=0, le=1)
    """Train on this share of the tokens, those of highest entropy in the step (arXiv:2506.01939)."""
    off_policy_mask: float | None = Field(default=None, gt=0)
    """Drop a completion with negative advantage if its tokens have become less likely by more than this, as the mean of
    the log-ratios (DeepSeek-V3.2, arXiv:2512.02556)."""
    difficulty_weight: bool = False
    """Weight completions by 0.5 + 1.5 x the group's share of wrong ones, scaled to mean 1 (ROLL)."""
    length_weight: bool = False
    """Weight completions by 1.5 - length, with lengths scaled to 0 to 1 over the batch and weights to mean 1 (ROLL)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.check_options("objective")
        if self.aggregation == "fixed-denominator" and self.denominator is None:
            raise ValueError('aggregation "fixed-denominator" needs denominator, a positive number')
        if self.denominator is not None and self.aggregation not in ("fixed-denominator", "seq-mean-token-sum-norm"):
            raise ValueError(
                "denominator is for aggregation fixed-denominator and seq-mean-token-sum-norm "
                f"(given: {self.aggregation})"
            )
        if self.cispo_cap is not None and self.cispo_lower:
            raise ValueError("give cispo_cap or cispo_lower, not both: the cap is TRL's form, without a lower bound")
        if self.ratio_low > self.ratio_high:
            raise ValueError(f"ratio_low ({self.ratio_low}) must not be above ratio_high ({self.ratio_high})")
        return self

    @property
    def resolved_aggregation(self) -> str:
        """The aggregation, with `auto` replaced by the objective's own."""
        if self.aggregation != "auto":
            return self.aggregation
        own = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean", "gmpo": "seq-mean-token-mean"}
        return "seq-mean-token-sum" if self.objective == "luspo" else own.get(self.objective, "token-mean")
