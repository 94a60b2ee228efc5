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
    """The policy's objective. docs/algorithms.md has formulas and papers. Options of other objectives are refused."""
    baseline: Literal["behavior", "proximal"] = "behavior"
    """Denominator of the ratio. `behavior` is the engine's log-probabilities of the sampled tokens. `proximal`, which
    `[correction]` needs, is the learner's log-probabilities before the first optimizer step of a train step."""
    clip_low: Annotated[float, OptionOf("ppo_clip", "cispo", "gspo", "luspo")] = Field(default=0.2, ge=0, le=1)
    """Lower clip width: ratios below 1 - clip_low are clipped (ppo_clip, gspo, luspo, cispo with `cispo_lower`)."""
    clip_high: Annotated[float, OptionOf("ppo_clip", "cispo", "gspo", "luspo")] = Field(default=0.28, ge=0)
    """Upper clip width: ratios above 1 + clip_high are clipped (clip-higher: DAPO, arXiv:2503.14476)."""
    dual_clip: Annotated[float | None, OptionOf("ppo_clip", "gspo", "luspo")] = Field(default=None, gt=1)
    """Upper bound of a token's loss if the advantage is negative, as a multiple of the advantage (arXiv:1912.09729)."""
    cispo_lower: Annotated[bool, OptionOf("cispo")] = False
    """Also keep the ratio above 1 - clip_low. Applies with the objective `cispo`."""
    cispo_cap: Annotated[float | None, OptionOf("cispo")] = Field(default=None, gt=0)
    """Largest ratio, in place of 1 + clip_high. Applies with the objective `cispo`."""
    cispo_unified_mask: Annotated[bool, OptionOf("cispo")] = False
    """Drop the tokens that PPO would clip. Applies with the objective `cispo`."""
    ratio_low: Annotated[float, OptionOf("truncated_is", "topr")] = Field(default=0.0, ge=0)
    """Smallest weight of a token (truncated_is, topr)."""
    ratio_high: Annotated[float, OptionOf("truncated_is", "topr")] = Field(default=1.0, gt=0)
    """Largest weight of a token (truncated_is, topr)."""
    sapo_tau_positive: Annotated[float, OptionOf("sapo")] = Field(default=1.0, gt=0)
    """Steepness of SAPO's gate if the advantage is positive."""
    sapo_tau_negative: Annotated[float, OptionOf("sapo")] = Field(default=1.05, gt=0)
    """Steepness of SAPO's gate if the advantage is not positive."""
    gmpo_log_clip_low: Annotated[float, OptionOf("gmpo")] = Field(default=0.4, ge=0)
    """GMPO's lower bound of the log-ratio if the advantage is negative, given as a positive number."""
    gmpo_log_clip_high: Annotated[float, OptionOf("gmpo")] = Field(default=0.4, ge=0)
    """GMPO's upper bound of the log-ratio if the advantage is positive."""
    vespo_k_positive: Annotated[float, OptionOf("vespo")] = Field(default=2.0, ge=0)
    """Exponent of the sequence's weight in VESPO if the advantage is positive."""
    vespo_lambda_positive: Annotated[float, OptionOf("vespo")] = Field(default=3.0, ge=0)
    """Decay of the sequence's weight in VESPO if the advantage is positive."""
    vespo_k_negative: Annotated[float, OptionOf("vespo")] = Field(default=3.0, ge=0)
    """Exponent of the sequence's weight in VESPO if the advantage is negative."""
    vespo_lambda_negative: Annotated[float, OptionOf("vespo")] = Field(default=2.0, ge=0)
    """Decay of the sequence's weight in VESPO if the advantage is negative."""
    topr_positive_weight: Annotated[float, OptionOf("topr")] = Field(default=1.0, ge=0)
    """Weight of completions with a positive reward in TOPR."""
    topr_negative_weight: Annotated[float, OptionOf("topr")] = Field(default=1.0, ge=0)
    """Weight of completions without a positive reward in TOPR."""
    kimi15_tau: Annotated[float, OptionOf("kimi15")] = Field(default=0.1, ge=0)
    """Weight of half the squared log-ratio in the objective of Kimi 1.5."""
    dppo_divergence_low: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=0.15, ge=0)
    """DPPO's bound for tokens that have become less likely. A token whose divergence is above this bound is dropped if
    the step would make the token even less likely."""
    dppo_divergence_high: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=0.15, ge=0)
    """DPPO's bound for tokens that have become more likely. A token whose divergence is above this bound is dropped if
    the step would make the token even more likely."""
    dppo_ratio_cap: Annotated[float, OptionOf("dppo_tv", "dppo_kl")] = Field(default=20.0, gt=0)
    """Largest ratio in DPPO."""
    aggregation: Aggregation = "auto"
    """How token losses are aggregated to one number. `auto` depends on the objective: seq-mean-token-mean for gspo,
    sapo and gmpo, seq-mean-token-sum for luspo, and token-mean over the whole mini-batch (DAPO) for all others."""
    denominator: float | None = Field(default=None, gt=0)
    """Divisor of the sum with "fixed-denominator", or of each sequence's sum with "seq-mean-token-sum-norm". If unset,
    "seq-mean-token-sum-norm" divides by `sampling.max_completion_tokens`, as in Dr. GRPO."""
    empty_sequences: Literal["skip", "count"] = "skip"
    """Whether a mean over sequences counts completions of which no token is trained on."""
    entropy_coef: float = 0.0
    """Weight of the policy's mean entropy, which is subtracted from the loss."""
    top_entropy_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the tokens to train on: the tokens of highest entropy in the step (arXiv:2506.01939)."""
    off_policy_mask: float | None = Field(default=None, gt=0)
    """Drop a completion with negative advantage if its tokens have become less likely by more than this bound, measured
    as the mean of the log-ratios (DeepSeek-V3.2, arXiv:2512.02556)."""
    difficulty_weight: bool = False
    """Weight completions by 0.5 + 1.5 x the group's share of wrong completions, scaled to mean 1 (ROLL)."""
    length_weight: bool = False
    """Weight completions by 1.5 - length. Lengths are scaled to 0 to 1 over the batch, and weights to mean 1 (ROLL)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.check_options("objective")
        if self.aggregation == "fixed-denominator" and self.denominator is None:
            raise ValueError('aggregation "fixed-denominator" needs denominator, a positive number')
        if self.denominator is not None and self.aggregation not in ("fixed-denominator", "seq-mean-token-sum-norm"):
            raise ValueError(
                "denominator applies only with aggregation fixed-denominator or seq-mean-token-sum-norm (given: "
                f"{self.aggregation}): remove denominator, or change aggregation"
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
