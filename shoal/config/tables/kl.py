"""The `[kl]` table: the penalty for leaving a reference."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import NEXT_STEP, Fixed, Section


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
