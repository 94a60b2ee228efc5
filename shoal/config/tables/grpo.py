"""The `[grpo]` table: groups, train steps, and which groups are trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import AT_ONCE, NEXT_STEP, Section


class GrpoConfig(Section):
    group_size: int = Field(default=8, ge=1)
    """Completions per prompt. At least 2 if `advantage.baseline` compares completions within the group."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups (prompts) per train step."""
    max_staleness: int = Field(default=1, ge=0)
    """Maximum number of train steps between the weights that sampled a group and the weights that train on the group. 0
    is fully on-policy; 1 samples one step ahead."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the groups of a train step."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per pass. `groups_per_step` must be divisible by this number."""
    active_sampling: bool = False
    """Continue to sample until `groups_per_step` groups have a signal, which `filter_groups_by` defines (DAPO's dynamic
    sampling, arXiv:2503.14476)."""
    max_refills: int = Field(default=2, ge=1)
    """Limit of active sampling: one step may sample at most `max_refills` times `groups_per_step` additional groups.
    After that the step trains on the groups that have a signal."""
    keep_zero_signal: bool = False
    """Also train on groups whose rewards are all equal. Such groups count in the divisor and in the KL."""
    filter_groups_by: Literal["reward", "correct"] = "reward"
    """Which groups are left out because they have no signal. `reward` leaves out groups whose rewards are all equal.
    `correct` also leaves out groups whose completions are all correct or all wrong and differ only in length or style.
    `correct` compares what decides "correct" (`reward.correct`), the verifiers' values and the environment's reward.
    The values of verl's `filter_groups.metric` correspond: `acc` is `correct`, `seq_reward` is `reward`."""
    easy_rate: float | None = Field(default=None, gt=0, le=1)
    """Exclude a prompt from the rest of the run once its group has at least this mean correct rate."""
    difficulty_low: Annotated[float | None, NEXT_STEP] = Field(default=None, ge=0, lt=1)
    """Drop groups whose share of correct completions is at most this value."""
    difficulty_high: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0, le=1)
    """Drop groups whose share of correct completions is at least this value."""
    mask_truncated_completions: Annotated[bool, NEXT_STEP] = False
    """Do not train on completions that `sampling.max_completion_tokens` cut off. Such completions still count in the
    statistics of their group."""
    max_wrong_completion_tokens: Annotated[int | None, NEXT_STEP] = Field(default=None, ge=1)
    """Do not train on wrong completions of at least this many tokens (ROLL's `error_max_len_clip`). Such completions
    still count in the statistics of their group."""
    max_skipped_steps: Annotated[int | None, AT_ONCE] = Field(default=None, ge=1)
    """Consecutive skipped steps after which the run ends, with a checkpoint. If unset, the run ends in three cases.
    First, after 3 or more skipped steps with 100 or more groups, none of which has a signal: with 95 % confidence fewer
    than 3 of 100 groups then have a signal. Second, after 3 steps that the learner refuses, because the loss or the
    gradient is not finite or `correction.filters` reject every token. Third, after 3 or more skipped steps in which
    every prompt was asked and no group has rewards to compare, because each group was refused, lost, timed out, masked
    or not scored. Groups of learned prompts (`easy_rate`) do not count. If the last 100 groups of a trained policy are
    all right, the policy has learned its prompts, and the run finishes."""

    @model_validator(mode="after")
    def _mini_batches_divide(self) -> Self:
        if self.groups_per_step % self.num_mini_batches:
            raise ValueError(
                f"groups_per_step ({self.groups_per_step}) must be divisible by num_mini_batches "
                f"({self.num_mini_batches}): mini-batches are whole groups"
            )
        if self.active_sampling and self.keep_zero_signal:
            raise ValueError(
                "active_sampling replaces groups without signal, keep_zero_signal trains on them: choose one"
            )
        if self.filter_groups_by == "correct" and self.keep_zero_signal:
            raise ValueError(
                'filter_groups_by "correct" leaves out groups that are equally correct, keep_zero_signal trains on '
                "them: choose one"
            )
        low, high = self.difficulty_low, self.difficulty_high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"difficulty_low ({low}) must be below difficulty_high ({high})")
        return self

    @property
    def completions_per_step(self) -> int:
        """Number of completions in one train step (open-instruct's effective batch size)."""
        return self.groups_per_step * self.group_size

    @property
    def optimizer_steps_per_step(self) -> int:
        """Number of optimizer steps in one train step."""
        return self.num_epochs * self.num_mini_batches

    @property
    def max_groups_in_flight(self) -> int:
        """Maximum number of groups between issue and publish of their weights (`shoal.grpo.staleness`)."""
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def max_refill_groups(self) -> int:
        """Maximum number of groups that one step may sample in place of groups without a signal."""
        return self.max_refills * self.groups_per_step if self.active_sampling else 0
