"""The `[grpo]` and `[sampling]` tables: the algorithm, and how completions are drawn."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shoal.config.section import Section


class GrpoConfig(Section):
    group_size: int = Field(default=8, ge=1)
    """Completions sampled for each prompt. At least 2 where `advantage.baseline` compares within the group."""
    groups_per_step: int = Field(default=8, ge=1)
    """Prompts, so groups, that one train step takes."""
    max_staleness: int = Field(default=1, ge=0)
    """Most train steps that weights may have moved on between sampling a group and training on it.
    0 is fully on-policy; 1 samples one step ahead."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the groups of a step."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps in each pass; divides `groups_per_step`."""
    active_sampling: bool = False
    """Sample on until `groups_per_step` groups have a signal (DAPO's dynamic sampling, arXiv:2503.14476)."""
    max_refills: int = Field(default=2, ge=1)
    """With active sampling: how many times `groups_per_step` more groups one step may sample. Beyond, it trains on
    what has a signal."""
    keep_zero_signal: bool = False
    """Train on groups whose rewards are all equal too; they count in the divisor and in the KL."""
    easy_rate: float | None = Field(default=None, gt=0, le=1)
    """Prompts whose group has at least this mean correct rate are not asked again in the run."""
    difficulty_low: float | None = Field(default=None, ge=0, lt=1)
    """Drop groups whose share of correct completions is at most this."""
    difficulty_high: float | None = Field(default=None, gt=0, le=1)
    """Drop groups whose share of correct completions is at least this."""
    mask_truncated_completions: bool = False
    """Completions that were cut off by `sampling.max_completion_tokens` take part in their group's statistics and
    are not trained on."""
    max_wrong_completion_tokens: int | None = Field(default=None, ge=1)
    """Completions of at least this many tokens that are not correct take part in their group's statistics and are
    not trained on (ROLL's `error_max_len_clip`)."""
    max_skipped_steps: int = Field(default=3, ge=1)
    """Steps in a row with nothing to apply that end the run."""

    @model_validator(mode="after")
    def _mini_batches_divide(self) -> Self:
        if self.groups_per_step % self.num_mini_batches:
            raise ValueError(
                f"groups_per_step ({self.groups_per_step}) must be divisible by num_mini_batches "
                f"({self.num_mini_batches}): mini-batches are whole groups"
            )
        if self.active_sampling and self.keep_zero_signal:
            raise ValueError(
                "active_sampling replaces groups without a signal, keep_zero_signal trains on them: choose"
            )
        low, high = self.difficulty_low, self.difficulty_high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"difficulty_low ({low}) must be below difficulty_high ({high})")
        return self

    @property
    def max_refill_groups(self) -> int:
        """Groups that one step may sample in the place of those without a signal."""
        return self.max_refills * self.groups_per_step if self.active_sampling else 0


class SamplingConfig(Section):
    temperature: float = Field(default=1.0, ge=0.01, le=2)
    """Divides the logits, in sampling and in the learner alike. vLLM takes no higher one, and would sample at 0.01
    for a lower one."""
    max_completion_tokens: int = Field(default=1024, ge=1)
    """Longest completion."""
    top_p: Literal[1] = 1
    """Truncated sampling biases the importance ratio, since the learner normalises over all tokens: only the
    full distribution is accepted for training."""
    top_k: Literal[0] = 0
    """As `top_p`: only 0 (all tokens) is accepted for training."""
    min_p: Literal[0] = 0
    """As `top_p`: only 0 (all tokens) is accepted for training."""
    stop_strings: list[str] = Field(default_factory=list)
    """Texts that end a completion, in training and evaluation alike, for example `</answer>`. What completes one is
    kept and trained on. Generators then decode each token as it is sampled, which costs them a little."""

    @field_validator("top_p", "top_k", "min_p", mode="before")
    @classmethod
    def _are_off(cls, value: object, info: ValidationInfo) -> object:
        off = 1 if info.field_name == "top_p" else 0
        if isinstance(value, bool) or value != off:
            raise ValueError(
                f"must be {off} in training: sampling from fewer tokens biases the importance "
                f"ratio, since the learner normalises over all of them; drop it (evaluation.{info.field_name} is free)"
            )
        return off

    @field_validator("stop_strings")
    @classmethod
    def _are_not_empty(cls, stop_strings: list[str]) -> list[str]:
        if "" in stop_strings:
            raise ValueError("a stop string must not be empty: every completion would end with its first token")
        return stop_strings
