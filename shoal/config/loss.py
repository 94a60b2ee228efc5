"""The `[loss]` and `[kl]` tables: what the learner minimises."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section

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
    """The policy's objective; docs/algorithms.md has each one's formula and paper. Options of another objective are
    refused."""
    baseline: Literal["behavior", "proximal"] = "behavior"
    """What the ratio compares the policy with: the engine's own log-probabilities of what it sampled, or the
    learner's, taken before the first optimizer step of a train step. `[correction]` needs the latter."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Ratios below 1 - clip_low are clipped (ppo_clip, gspo, luspo, cispo with `cispo_lower`)."""
    clip_high: float = Field(default=0.28, ge=0)
    """Ratios above 1 + clip_high are clipped (clip-higher: DAPO, arXiv:2503.14476)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Where the advantage is negative, a token's loss is at most this many times it (arXiv:1912.09729)."""
    cispo_lower: bool = False
    """CISPO: hold the ratio above 1 - clip_low as well."""
    cispo_cap: float | None = Field(default=None, gt=0)
    """CISPO: the largest ratio itself, in place of 1 + clip_high."""
    cispo_unified_mask: bool = False
    """CISPO: drop the tokens that PPO would clip."""
    ratio_low: float = Field(default=0.0, ge=0)
    """Least weight of a token (truncated_is, topr)."""
    ratio_high: float = Field(default=1.0, gt=0)
    """Largest weight of a token (truncated_is, topr)."""
    sapo_tau_positive: float = Field(default=1.0, gt=0)
    """SAPO: steepness of the gate where the advantage is positive."""
    sapo_tau_negative: float = Field(default=1.05, gt=0)
    """SAPO: the same where it is not."""
    gmpo_log_clip_low: float = Field(default=0.4, ge=0)
    """GMPO: log-ratios are held above minus this where the advantage is negative."""
    gmpo_log_clip_high: float = Field(default=0.4, ge=0)
    """GMPO: log-ratios are held below this where it is positive."""
    vespo_k_positive: float = Field(default=2.0, ge=0)
    """VESPO: exponent of the sequence's weight where the advantage is positive."""
    vespo_lambda_positive: float = Field(default=3.0, ge=0)
    """VESPO: decay of the weight there."""
    vespo_k_negative: float = Field(default=3.0, ge=0)
    """VESPO: the exponent where the advantage is negative."""
    vespo_lambda_negative: float = Field(default=2.0, ge=0)
    """VESPO: the decay there."""
    topr_positive_weight: float = Field(default=1.0, ge=0)
    """TOPR: weight of completions with a positive reward."""
    topr_negative_weight: float = Field(default=1.0, ge=0)
    """TOPR: weight of the others."""
    kimi15_tau: float = Field(default=0.1, ge=0)
    """Kimi 1.5: weight of half the squared log-ratio."""
    dppo_divergence_low: float = Field(default=0.15, ge=0)
    """DPPO: tokens that have become less likely by more divergence than this, and should become so, are dropped."""
    dppo_divergence_high: float = Field(default=0.15, ge=0)
    """DPPO: the same for tokens that have become more likely."""
    dppo_ratio_cap: float = Field(default=20.0, gt=0)
    """DPPO: largest ratio."""
    aggregation: Aggregation = "auto"
    """How token losses become one number; `auto` is the objective's own: seq-mean-token-mean for gspo, sapo and gmpo,
    seq-mean-token-sum for luspo, else token-mean over the whole mini-batch (DAPO)."""
    denominator: float | None = Field(default=None, gt=0)
    """What "fixed-denominator" divides the sum by; and what "seq-mean-token-sum-norm" divides each sequence's sum by
    (unset there: `sampling.max_completion_tokens`, as Dr. GRPO)."""
    empty_sequences: Literal["skip", "count"] = "skip"
    """Whether a completion without a token that counts is one of the sequences of a sequence mean."""
    entropy_coef: float = 0.0
    """Weight of the mean entropy of the policy, which is taken from the loss."""
    top_entropy_share: float = Field(default=1.0, gt=0, le=1)
    """Train on this share of the tokens, those of highest entropy in the step (arXiv:2506.01939)."""
    off_policy_mask: float | None = Field(default=None, gt=0)
    """Drop a completion of negative advantage whose tokens have become less likely by more than this, on average over
    the log-ratios (DeepSeek-V3.2, arXiv:2512.02556)."""
    difficulty_weight: bool = False
    """Weight completions by 0.5 + 1.5 x the group's share of wrong ones, brought to mean 1 (ROLL)."""
    length_weight: bool = False
    """Weight completions by 1.5 - length, the length brought to 0 to 1 over the batch, brought to mean 1 (ROLL)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for name, objectives in _USED_BY.items():
            if self.objective not in objectives and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is an option of {' and '.join(objectives)}; the objective is {self.objective}: drop it"
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
    """How far the policy may go from a reference: the model that it began as, or one that follows it."""

    coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence. At 0 no reference is loaded, unless `reference` is "always"."""
    place: Literal["loss", "reward"] = "loss"
    """Added to the loss of each token, or taken from its reward before advantages are computed."""
    reward_level: Literal["token", "completion"] = "token"
    """In the reward: taken at each token, from which on it is discounted (`advantage.discount`), beside the
    completion's advantage, which is computed without it (ROLL, OpenRLHF); or its sum taken from the completion's
    reward, before that is compared (verl's GRPO, TRL's RLOO)."""
    estimator: Literal["k1", "k2", "k3", "abs", "ratio_k1"] = "k3"
    """With d = logp - reference: d, d^2/2, exp(-d) + d - 1, |d|, ratio x d (joschu.net/blog/kl-approx). open-instruct's
    estimators 0 to 3 are k1, k2, k3, ratio_k1."""
    gradient: Literal["plain", "straight_through", "off_policy", "bias_corrected", "score_function"] = "plain"
    """The estimator's own gradient; that of k2 (verl's "+"); that of k2 times the ratio, at most 10 (OpenRLHF); the
    estimator times the live ratio (TRL); or the estimator's with the sampling probability's besides (NeMo-RL)."""
    input_clamp: float | None = Field(default=None, gt=0)
    """d is held within plus and minus this (open-instruct: 40)."""
    output_clamp: float | None = Field(default=None, gt=0)
    """The estimate is held within plus and minus this (verl, ROLL: 10)."""
    reference: Literal["auto", "always", "never"] = "auto"
    """Load the reference when `coef` is above 0; in any case, for the metrics; or never, which needs coef 0."""
    reference_update_steps: int | None = Field(default=None, ge=1)
    """Train steps between updates of the reference; unset keeps it as it was."""
    reference_alpha: float = Field(default=0.6, gt=0, le=1)
    """Share of the policy in such an update: reference = (1 - alpha) x reference + alpha x policy (TR-DPO,
    arXiv:2404.09656)."""
    target: float | None = Field(default=None, gt=0)
    """Adapt the coefficient so that the KL, a mean over completions of their token means, comes to this
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
            raise ValueError(f'estimator "ratio_k1" has the ratio already: use gradient "plain", not {self.gradient!r}')
        if self.place == "loss" and self.reward_level != "token":
            raise ValueError('reward_level is for place "reward": set place, or drop reward_level')
        if self.target is not None and self.coef == 0:
            raise ValueError("target adapts coef, which must begin above 0")
        if not self.needs_reference and self.reference_update_steps is not None:
            raise ValueError("reference_update_steps needs a reference: set coef above 0 or reference to always")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is loaded."""
        return self.reference == "always" or (self.reference == "auto" and self.coef > 0)
