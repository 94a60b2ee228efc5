"""The `[loss]` and `[kl]` tables: the loss that the learner minimizes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import NEXT_STEP, Fixed, Section

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
_CLIPPED = ("ppo_clip", "cispo", "gspo", "luspo")
_USED_BY: dict[str, tuple[str, ...]] = {
    "dual_clip": ("ppo_clip", "gspo", "luspo"),
    "cispo_lower": ("cispo",),
    "cispo_cap": ("cispo",),
    "cispo_unified_mask": ("cispo",),
    "ratio_low": ("truncated_is", "topr"),
    "ratio_high": ("truncated_is", "topr"),
    "sapo_tau_positive": ("sapo",),
    "sapo_tau_negative": ("sapo",),
    "gmpo_log_clip_low": ("gmpo",),
    "gmpo_log_clip_high": ("gmpo",),
    "vespo_k_positive": ("vespo",),
    "vespo_lambda_positive": ("vespo",),
    "vespo_k_negative": ("vespo",),
    "vespo_lambda_negative": ("vespo",),
    "topr_positive_weight": ("topr",),
    "topr_negative_weight": ("topr",),
    "kimi15_tau": ("kimi15",),
    "dppo_divergence_low": ("dppo_tv", "dppo_kl"),
    "dppo_divergence_high": ("dppo_tv", "dppo_kl"),
    "dppo_ratio_cap": ("dppo_tv", "dppo_kl"),
    "clip_low": _CLIPPED,
    "clip_high": _CLIPPED,
}


class LossConfig(Section):
    objective: Objective = "ppo_clip"
    """The policy's objective; docs/algorithms.md gives the formula and paper of each. Options of another objective are
    refused."""
    baseline: Literal["behavior", "proximal"] = "behavior"
    """Denominator of the ratio: the engine's log-probabilities of the sampled tokens (`behavior`), or the learner's,
    computed before the first optimizer step of a train step (`proximal`). `[correction]` needs `proximal`."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Ratios below 1 - clip_low are clipped (ppo_clip, gspo, luspo, cispo with `cispo_lower`)."""
    clip_high: float = Field(default=0.28, ge=0)
    """Ratios above 1 + clip_high are clipped (clip-higher: DAPO, arXiv:2503.14476)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper bound of a token's loss where the advantage is negative, as a multiple of the advantage
    (arXiv:1912.09729)."""
    cispo_lower: bool = False
    """CISPO: also keep the ratio above 1 - clip_low."""
    cispo_cap: float | None = Field(default=None, gt=0)
    """CISPO: largest ratio, instead of 1 + clip_high."""
    cispo_unified_mask: bool = False
    """CISPO: drop the tokens that PPO would clip."""
    ratio_low: float = Field(default=0.0, ge=0)
    """Smallest weight of a token (truncated_is, topr)."""
    ratio_high: float = Field(default=1.0, gt=0)
    """Largest weight of a token (truncated_is, topr)."""
    sapo_tau_positive: float = Field(default=1.0, gt=0)
    """SAPO: steepness of the gate where the advantage is positive."""
    sapo_tau_negative: float = Field(default=1.05, gt=0)
    """SAPO: steepness of the gate elsewhere."""
    gmpo_log_clip_low: float = Field(default=0.4, ge=0)
    """GMPO: lower bound of the log-ratio, negated, where the advantage is negative."""
    gmpo_log_clip_high: float = Field(default=0.4, ge=0)
    """GMPO: upper bound of the log-ratio where the advantage is positive."""
    vespo_k_positive: float = Field(default=2.0, ge=0)
    """VESPO: exponent of the sequence's weight where the advantage is positive."""
    vespo_lambda_positive: float = Field(default=3.0, ge=0)
    """VESPO: decay of the weight where the advantage is positive."""
    vespo_k_negative: float = Field(default=3.0, ge=0)
    """VESPO: exponent of the sequence's weight where the advantage is negative."""
    vespo_lambda_negative: float = Field(default=2.0, ge=0)
    """VESPO: decay of the weight where the advantage is negative."""
    topr_positive_weight: float = Field(default=1.0, ge=0)
    """TOPR: weight of completions with a positive reward."""
    topr_negative_weight: float = Field(default=1.0, ge=0)
    """TOPR: weight of the other completions."""
    kimi15_tau: float = Field(default=0.1, ge=0)
    """Kimi 1.5: weight of half the squared log-ratio."""
    dppo_divergence_low: float = Field(default=0.15, ge=0)
    """DPPO: drop tokens that have become less likely by more divergence than this, if the step would make them even
    less likely."""
    dppo_divergence_high: float = Field(default=0.15, ge=0)
    """DPPO: the same bound for tokens that have become more likely."""
    dppo_ratio_cap: float = Field(default=20.0, gt=0)
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
        for name, objectives in _USED_BY.items():
            if self.objective not in objectives and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is an option of {' and '.join(objectives)}; the objective is {self.objective}: remove it"
                )
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


class KlConfig(Section):
    """The KL divergence between the policy and a reference: the initial model, or one that follows the policy."""

    coef: Annotated[float, NEXT_STEP] = Field(default=0.0, ge=0)
    """Weight of the KL divergence. At 0 no reference is loaded, unless `reference` is "always"."""
    place: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss of each token, or subtract it from the reward before advantages are computed."""
    reward_level: Literal["token", "completion"] = "token"
    """With place "reward": `token` subtracts the KL at each token, discounted from there on (`advantage.discount`),
    from the completion's advantage, which is computed without it (ROLL, OpenRLHF). `completion` subtracts its sum from
    the completion's reward, before rewards are compared (verl's GRPO, TRL's RLOO)."""
    estimator: Literal["k1", "k2", "k3", "abs", "ratio_k1"] = "k3"
    """With d = logp - reference: d, d^2/2, exp(-d) + d - 1, |d|, ratio x d (joschu.net/blog/kl-approx). open-instruct's
    estimators 0 to 3 are k1, k2, k3, ratio_k1."""
    gradient: Literal["plain", "straight_through", "off_policy", "bias_corrected", "score_function"] = "plain"
    """Gradient of the KL: the estimator's own; k2's (verl's "+"); k2's times the ratio, at most 10 (OpenRLHF); that of
    the estimator times the differentiable ratio (TRL); or the estimator's plus that of the sampling probability
    (NeMo-RL)."""
    input_clamp: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp d to plus or minus this (open-instruct: 40)."""
    output_clamp: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp the estimate to plus or minus this (verl, ROLL: 10)."""
    reference: Literal["auto", "always", "never"] = "auto"
    """Load the reference if `coef` is above 0 (`auto`), always, for the metrics, or never, which needs coef 0."""
    reference_update_steps: Annotated[
        int | None, Fixed("the checkpoint holds a reference that follows the policy at this pace, or none")
    ] = Field(default=None, ge=1)
    """Train steps between updates of the reference; unset never updates it."""
    reference_alpha: float = Field(default=0.6, gt=0, le=1)
    """Share of the policy in an update of the reference: reference = (1 - alpha) x reference + alpha x policy (TR-DPO,
    arXiv:2404.09656)."""
    target: float | None = Field(default=None, gt=0)
    """Target of the KL (mean over completions of their token means), to which the coefficient adapts
    (arXiv:1909.08593)."""
    horizon: int = Field(default=10_000, ge=1)
    """Completions over which the coefficient adapts."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.reference == "never" and self.coef > 0:
            raise ValueError(f"coef ({self.coef}) needs a reference policy: set coef to 0 or reference to auto")
        if self.place == "reward" and (self.gradient != "plain" or self.estimator == "ratio_k1"):
            raise ValueError('KL in the reward has no gradient: use gradient "plain" and an estimator without ratio')
        if self.estimator == "ratio_k1" and self.gradient != "plain":
            raise ValueError(
                f'estimator "ratio_k1" already contains the ratio: use gradient "plain", not {self.gradient!r}'
            )
        if self.place == "loss" and self.reward_level != "token":
            raise ValueError('reward_level is for place "reward": set place, or remove reward_level')
        if self.target is not None and self.coef == 0:
            raise ValueError("target adapts coef, which must start above 0")
        if not self.needs_reference and self.reference_update_steps is not None:
            raise ValueError("reference_update_steps needs a reference: set coef above 0 or reference to always")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is loaded."""
        return self.reference == "always" or (self.reference == "auto" and self.coef > 0)
