"""The `[grpo]` and `[sampling]` tables: the algorithm, and how completions are drawn."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.section import Section


class GrpoConfig(Section):
    group_size: int = Field(default=8, ge=2)
    """Completions sampled for each prompt. At least 2: a group of one has no one to compare with."""
    groups_per_step: int = Field(default=8, ge=1)
    """Prompts, so groups, that one train step takes."""
    max_staleness: int = Field(default=1, ge=0)
    """Most train steps that weights may have moved on between sampling a group and training on it.
    0 is fully on-policy; 1 samples one step ahead."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the groups of a step."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps in each pass; divides `groups_per_step`."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Probability ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(default=0.28, ge=0)
    """Probability ratios above 1 + clip_high are clipped (clip-higher: DAPO, arXiv:2503.14476)."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference) in the loss. 0 loads no reference model."""
    advantage_scale: Literal["std", "none"] = "std"
    """`std` divides a group's centred rewards by their standard deviation (GRPO, arXiv:2402.03300); `none`
    only centres them (Dr. GRPO, arXiv:2503.20783)."""
    advantage_std_ddof: Literal[0, 1] = 1
    """What is subtracted from the count in the group's variance."""
    advantage_std_eps: float = Field(default=1e-6, ge=0)
    """Added to the group's standard deviation."""
    max_skipped_steps: int = Field(default=3, ge=1)
    """Steps in a row with nothing to apply that end the run."""

    @model_validator(mode="after")
    def _mini_batches_divide(self) -> Self:
        if self.groups_per_step % self.num_mini_batches:
            raise ValueError(
                f"groups_per_step ({self.groups_per_step}) must be divisible by num_mini_batches "
                f"({self.num_mini_batches}): mini-batches are whole groups"
            )
        return self


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
