"""The `[kl]` table: the penalty for leaving a reference."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import NEXT_STEP, Fixed, Section


class KlConfig(Section):
    """The KL divergence between the policy and a reference: the initial model, or a model that follows the policy."""

    coef: Annotated[float, NEXT_STEP] = Field(default=0.0, ge=0)
    """Weight of the KL divergence. At 0 no reference is loaded, unless `reference` is "always"."""
    place: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss of each token, or subtract it from the reward before advantages are computed."""
    reward_level: Literal["token", "completion"] = "token"
    """How the KL enters the reward with place "reward". `token` computes the advantage without the KL, and subtracts
    from each token's advantage the KL from this token on, discounted by `advantage.discount` (ROLL, OpenRLHF).
    `completion` subtracts the sum of the KL from the reward, before rewards are compared (verl's GRPO, TRL's RLOO)."""
    estimator: Literal["k1", "k2", "k3", "abs", "ratio_k1"] = "k3"
    """Estimator of the KL. With d = logp - reference, `k1` is d, `k2` is d^2/2, `k3` is exp(-d) + d - 1, `abs` is |d|,
    and `ratio_k1` is ratio x d (joschu.net/blog/kl-approx). open-instruct's 0 to 3 are k1, k2, k3, ratio_k1."""
    gradient: Literal["plain", "straight_through", "off_policy", "bias_corrected", "score_function"] = "plain"
    """Gradient of the KL. `plain` is the estimator's own gradient, and `straight_through` the gradient of k2 (verl's
    "+"). `off_policy` is the gradient of k2 times the ratio, at most 10 (OpenRLHF). `bias_corrected` is the gradient of
    the estimator times the differentiable ratio (TRL). `score_function` is the estimator's gradient plus the gradient
    of the sampling probability (NeMo-RL)."""
    input_clamp: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp d = log-probability - reference log-probability to plus or minus this value (open-instruct: 40)."""
    output_clamp: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp the estimate of the KL to plus or minus this value (verl, ROLL: 10)."""
    reference: Literal["auto", "always", "never"] = "auto"
    """When the reference is loaded. `auto` loads the reference if `coef` is above 0. `always` also loads the reference
    at `coef` 0, for the metrics. `never` needs `coef` 0."""
    reference_update_steps: Annotated[
        int | None, Fixed("the checkpoint holds a reference that follows the policy at this pace, or none")
    ] = Field(default=None, ge=1)
    """Train steps between updates of the reference. If unset, the reference is never updated."""
    reference_alpha: float = Field(default=0.6, gt=0, le=1)
    """Share of the policy in an update: (1 - alpha) x reference + alpha x policy (TR-DPO, arXiv:2404.09656)."""
    target: float | None = Field(default=None, gt=0)
    """Target of the KL (mean over completions of token means), to which the coefficient adapts (arXiv:1909.08593)."""
    horizon: int = Field(default=10_000, ge=1)
    """Number of completions over which the coefficient adapts to `target`."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.reference == "never" and self.coef > 0:
            raise ValueError(f"coef ({self.coef}) needs a reference policy: set coef to 0 or reference to auto")
        if self.place == "reward" and (self.gradient != "plain" or self.estimator == "ratio_k1"):
            raise ValueError('place "reward" needs gradient "plain", and an estimator other than "ratio_k1"')
        if self.estimator == "ratio_k1" and self.gradient != "plain":
            raise ValueError(
                f'estimator "ratio_k1" already contains the ratio: use gradient "plain", not {self.gradient!r}'
            )
        if self.place == "loss" and self.reward_level != "token":
            raise ValueError('reward_level applies only with place "reward": set place, or remove reward_level')
        if self.target is not None and self.coef == 0:
            raise ValueError("target adapts coef, so coef must be above 0 (given: 0)")
        if not self.needs_reference and self.reference_update_steps is not None:
            raise ValueError("reference_update_steps needs a reference: set coef above 0 or reference to always")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is loaded."""
        return self.reference == "always" or (self.reference == "auto" and self.coef > 0)
