"""The `[advantage]` table: how rewards become advantages of tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import NEXT_STEP, Section

Baseline = Literal[
    "group_mean", "leave_one_out", "batch_mean", "running_mean", "length_weighted", "greedy", "second_best", "none"
]
Scale = Literal["group_std", "leave_one_out_std", "batch_std", "running_std", "nonzero_share", "none"]


class AdvantageConfig(Section):
    """`advantage = clip(whiten((reward - baseline) / scale))`, with every part optional. docs/algorithms.md
    describes the estimators of papers and other systems in these terms."""

    baseline: Baseline = "group_mean"
    """Baseline that is subtracted from a reward. `group_mean` is the mean of the completion's group (GRPO,
    arXiv:2402.03300), `leave_one_out` the mean of the other completions in the group (RLOO, arXiv:2402.14740).
    `batch_mean` is the mean of the batch, `running_mean` the mean of all rewards of the run so far (ROLL).
    `length_weighted` is the group's mean weighted by length (OPO, arXiv:2505.23585). `greedy` is the reward of an
    additional greedy completion of the prompt (ReMax, arXiv:2310.10505). `second_best` rewards only the best completion
    of a group, by its lead over the second best (pass@k training, arXiv:2503.19595)."""
    scale: Scale = "group_std"
    """Divisor of the difference between reward and baseline: a standard deviation, the share of nonzero rewards in the
    batch (`nonzero_share`: GPG, arXiv:2504.02546), or none (Dr. GRPO, arXiv:2503.20783). `running_std` is the standard
    deviation of all rewards of the run so far, including the rewards of the current batch."""
    std_ddof: Literal[0, 1] = 1
    """Number subtracted from the count of rewards in the variance."""
    std_eps: Annotated[float, NEXT_STEP] = Field(default=1e-6, ge=0)
    """Number added to the standard deviation."""
    per_verifier: bool = False
    """Normalize the scores of each verifier separately, then sum them with their weights (GDPO, arXiv:2601.05242)."""
    batch_normalize: bool = False
    """After `baseline` and `scale`, normalize the results of the batch's completions to mean 0 and standard deviation
    1."""
    batch_std_eps: Annotated[float, NEXT_STEP] = Field(default=1e-4, ge=0)
    """Number added to the standard deviation of `batch_normalize`."""
    whiten: bool = False
    """After `batch_normalize`, center the advantages over all completion tokens of the batch and divide them by their
    standard deviation (REINFORCE++, arXiv:2501.03262)."""
    whiten_ddof: Literal[0, 1] = 1
    """Number subtracted from the count of tokens in the variance of `whiten`."""
    whiten_eps: Annotated[float, NEXT_STEP] = Field(default=1e-8, ge=0)
    """Number added to the variance of `whiten`."""
    batch_per_verifier: bool = False
    """Compute all statistics of the batch (`batch_mean`, `batch_std`, `nonzero_share`, `batch_normalize`, `whiten`)
    separately for the prompts of each verifier, for data of several tasks (ROLL's domains)."""
    reward_min: Annotated[float | None, NEXT_STEP] = None
    """Lower bound of rewards, applied before all other parts of the advantage (TRL's `reward_clip_range`)."""
    reward_max: Annotated[float | None, NEXT_STEP] = None
    """Upper bound of rewards, applied before all other parts of the advantage."""
    reward_clip: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp rewards to plus or minus this value after `baseline` and `scale` (ROLL's `reward_clip`)."""
    partial_rewards: bool = False
    """If some verifiers of a completion failed, compute the reward from the verifiers that scored the completion (TRL).
    Otherwise the completion has no reward and is not trained on. A failure never counts as 0."""
    step_rewards: bool = False
    """Add the verifiers' scores of single steps to the advantages (process supervision, arXiv:2402.03300). Step scores
    are compared and scaled over all steps of the group. A score counts for every token up to the end of its step."""
    clip: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0)
    """Clamp advantages to plus or minus this value, after all other parts of the advantage."""
    discount: Annotated[float, NEXT_STEP] = Field(default=1.0, gt=0, le=1)
    """Discount factor per token, going back from the last token, which has the completion's reward. The factor also
    applies to the KL in the reward (`kl.reward_level` "token")."""

    @property
    def is_running(self) -> bool:
        """Whether rewards are compared with all rewards since the start of the run."""
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
                "running_mean and running_std use whole rewards: they cannot be combined with per_verifier or "
                'step_rewards; use "batch_mean" and "batch_std"'
            )
        if self.is_running and self.batch_per_verifier:
            raise ValueError(
                "running_mean and running_std are over all rewards of the run: they cannot be combined with "
                'batch_per_verifier; use "batch_mean" and "batch_std"'
            )
        if self.baseline == "leave_one_out" and self.scale == "group_std":
            raise ValueError('baseline "leave_one_out" needs a scale of "leave_one_out_std", "batch_std" or "none"')
        if self.baseline in ("batch_mean", "running_mean", "greedy", "none") and self.scale in (
            "group_std",
            "leave_one_out_std",
        ):
            raise ValueError(
                f"scale {self.scale!r} would divide by 0 if all rewards of a group are equal, since baseline "
                f'{self.baseline!r} does not make their advantages 0: set scale to "batch_std" or "none"'
            )
        return self
