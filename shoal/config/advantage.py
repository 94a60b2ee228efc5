"""The `[advantage]` table: from rewards to what each token is worth."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section

Baseline = Literal[
    "group_mean", "leave_one_out", "batch_mean", "running_mean", "length_weighted", "greedy", "second_best", "none"
]
Scale = Literal["group_std", "leave_one_out_std", "batch_std", "running_std", "nonzero_share", "none"]


class AdvantageConfig(Section):
    """`advantage = clip(whiten((reward - baseline) / scale))`, each part optional; docs/algorithms.md names
    the papers' and other systems' estimators in these terms."""

    baseline: Baseline = "group_mean"
    """What a reward is compared with: the mean of its group (GRPO, arXiv:2402.03300), of its siblings (RLOO,
    arXiv:2402.14740), of the batch, of all rewards of the run so far (`running_mean`, ROLL); the mean weighted by
    length (OPO, arXiv:2505.23585); the reward of a greedy completion of the prompt, which is sampled besides (ReMax,
    arXiv:2310.10505); `second_best` pays only the best of a group, by its lead (pass@k training, arXiv:2503.19595)."""
    scale: Scale = "group_std"
    """What the difference is divided by: a standard deviation (`running_std`: of all rewards of the run so far, these
    included), or nothing (Dr. GRPO, arXiv:2503.20783); `nonzero_share` is the share of rewards in the batch that are
    not 0 (GPG, arXiv:2504.02546)."""
    std_ddof: Literal[0, 1] = 1
    """What is subtracted from the count in the variance."""
    std_eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation."""
    per_verifier: bool = False
    """Normalise each verifier's scores by themselves, then sum them by their weights (GDPO, arXiv:2601.05242)."""
    batch_normalize: bool = False
    """Afterwards, centre over the batch's completions and divide by their standard deviation."""
    batch_std_eps: float = Field(default=1e-4, ge=0)
    """Added to that standard deviation."""
    whiten: bool = False
    """Afterwards, centre over all completion tokens of the batch and divide by their standard deviation
    (REINFORCE++, arXiv:2501.03262)."""
    whiten_ddof: Literal[0, 1] = 1
    """What is subtracted from the count of tokens in that variance."""
    whiten_eps: float = Field(default=1e-8, ge=0)
    """Added to that variance."""
    reward_min: float | None = None
    """Rewards are raised to this at least, first of all (TRL's `reward_clip_range`)."""
    reward_max: float | None = None
    """Rewards are lowered to this at most, first of all."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Rewards, once compared with `baseline` and divided by `scale`, are held within plus and minus this (ROLL's
    `reward_clip`)."""
    partial_rewards: bool = False
    """Let the verifiers that did score a completion make its reward when others failed (TRL). Else it has none, and
    is not trained on; never does a failure count as 0."""
    step_rewards: bool = False
    """Add what verifiers say of single steps: their scores, compared and scaled among all steps of the group, count
    for every token up to the step's end (process supervision, arXiv:2402.03300)."""
    clip: float | None = Field(default=None, gt=0)
    """Advantages are held within plus and minus this, last of all."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """What a reward is worth one token earlier: a completion's own stands at its last token, beside it the KL in the
    reward (`kl.reward_level` "token")."""

    @property
    def is_running(self) -> bool:
        """Whether rewards are compared with all rewards since the run began."""
        return self.baseline == "running_mean" or self.scale == "running_std"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.per_verifier and self.baseline in ("greedy", "second_best", "length_weighted"):
            raise ValueError(f"per_verifier cannot be combined with baseline {self.baseline!r}: use group_mean")
        if self.reward_min is not None and self.reward_max is not None and self.reward_min >= self.reward_max:
            raise ValueError(f"reward_min ({self.reward_min}) must be below reward_max ({self.reward_max})")
        if self.step_rewards and self.baseline in ("greedy", "second_best", "length_weighted"):
            raise ValueError(f"step_rewards cannot be combined with baseline {self.baseline!r}: use group_mean")
        if self.is_running and (self.per_verifier or self.step_rewards):
            raise ValueError(
                "running_mean and running_std are of whole rewards: they cannot be combined with per_verifier or "
                'step_rewards; use "batch_mean" and "batch_std"'
            )
        if self.baseline == "leave_one_out" and self.scale == "group_std":
            raise ValueError('baseline "leave_one_out" goes with scale "leave_one_out_std", "batch_std" or "none"')
        if self.baseline in ("batch_mean", "running_mean", "greedy", "none") and self.scale in (
            "group_std",
            "leave_one_out_std",
        ):
            raise ValueError(
                f"scale {self.scale!r} would divide by 0 where the rewards of a group are equal, which baseline "
                f'{self.baseline!r} does not make 0: set scale to "batch_std" or "none"'
            )
        return self
