"""The `[grpo]` table: groups, train steps, and which groups are trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.config.tables.section import AT_ONCE, NEXT_STEP, Section


class GrpoConfig(Section):
    group_size: int = Field(default=8, ge=1)
    """Completions per prompt. At least 2 if `advantage.baseline` compares within the group."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups (prompts) per train step."""
    max_staleness: int = Field(default=1, ge=0)
    """Maximum number of train steps between the weights that sampled a group and those that train on it. 0 is fully
    on-policy; 1 samples one step ahead."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the groups of a train step."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per pass; must divide `groups_per_step`."""
    active_sampling: bool = False
    """Continue to sample until `groups_per_step` groups have signal (DAPO's dynamic sampling, arXiv:2503.14476)."""
    max_refills: int = Field(default=2, ge=1)
    """Limit of active sampling: one step may sample this many times `groups_per_step` additional groups. After that it
    trains on the groups that have signal."""
    keep_zero_signal: bool = False
    """Also train on groups whose rewards are all equal; they count in the divisor and in the KL."""
    filter_groups_by: Literal["reward", "correct"] = "reward"
    """Which groups are left out for having no signal. `reward`: groups whose rewards are all equal. `correct`: also
    groups that are equal in what says "correct" (`reward.correct`), the verifiers' values and an environment's reward:
    all right, or all wrong, and different in length or style alone. verl's `filter_groups.metric`: `acc` is `correct`,
    `seq_reward` is `reward`."""
    easy_rate: float | None = Field(default=None, gt=0, le=1)
    """Exclude a prompt from the rest of the run once its group has at least this mean correct rate."""
    difficulty_low: Annotated[float | None, NEXT_STEP] = Field(default=None, ge=0, lt=1)
    """Drop groups whose share of correct completions is at most this."""
    difficulty_high: Annotated[float | None, NEXT_STEP] = Field(default=None, gt=0, le=1)
    """Drop groups whose share of correct completions is at least this."""
    mask_truncated_completions: Annotated[bool, NEXT_STEP] = False
    """Do not train on completions that `sampling.max_completion_tokens` cut off. They still count in the statistics of
    their group."""
    max_wrong_completion_tokens: Annotated[int | None, NEXT_STEP] = Field(default=None, ge=1)
    """Do not train on wrong completions of at least this many tokens (ROLL's `error_max_len_clip`). They still count in
    the statistics of their group."""
    max_skipped_steps: Annotated[int | None, AT_ONCE] = Field(default=None, ge=1)
    """Consecutive skipped steps after which the run ends, with a checkpoint. If unset, it ends after 3 or more with 100
    groups or more none of which has a signal: then fewer than 3 of 100 groups have one, with 95 % confidence. It also
    ends after 3 that the learner refuses: their loss or gradient is not finite, or `correction.filters` reject every
    token. So it does after 3 or more in which every prompt was asked and no group has rewards to compare: each was
    refused, lost, timed out, masked or not scored. Groups of prompts that are learned (`easy_rate`) do not count, and
    a trained policy whose last 100 groups are all right has learned its prompts: the run finishes."""

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
        """Completions of one train step: open-instruct's effective batch size."""
        return self.groups_per_step * self.group_size

    @property
    def optimizer_steps_per_step(self) -> int:
        """Optimizer steps of one train step."""
        return self.num_epochs * self.num_mini_batches

    @property
    def max_groups_in_flight(self) -> int:
        """Groups between their issue and the publish of the weights trained on them (see `shoal.grpo.staleness`)."""
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def max_refill_groups(self) -> int:
        """Groups that one step may sample to replace those without signal."""
        return self.max_refills * self.groups_per_step if self.active_sampling else 0
