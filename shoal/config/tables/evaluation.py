"""The `[evaluation]` table: held-out questions, and how the policy answers them."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from shoal.config.tables.data import SourceConfig
from shoal.config.tables.section import AT_ONCE, Section

MIN_TEMPERATURE = 0.01
"""vLLM would raise a lower temperature to this one, unless it is 0."""


class EvaluationConfig(Section):
    """Held-out questions that the policy answers at the end of the run and, optionally, during it. All answers of an
    evaluation come from one policy version: no train step runs while they are sampled."""

    sources: list[SourceConfig] = Field(default_factory=list)
    """Sources of the questions. Without sources there is no evaluation."""
    num_prompts: int = Field(default=200, ge=1)
    """Number of questions: the first questions of the sources that are not among the training prompts."""
    held_out: bool = True
    """Leave out questions that are trained on. `false` includes such questions, as open-instruct does, so that the
    correct rate also measures memorization."""
    every_steps: Annotated[int, AT_ONCE] = Field(default=0, ge=0)
    """Train steps between evaluations. 0 evaluates only at the end. The policy of the last step and the policy of a
    drained run are always evaluated. The policy of a run that stops at once is not evaluated."""
    on_start: bool = True
    """Also evaluate the policy before training, as step 0."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers per question. With n answers the correct rate is avg@n."""
    pass_at_k: list[int] = Field(default_factory=list)
    """Values of k for pass@k, each at most `samples_per_prompt`. If empty: 1, 2, 4, ... and `samples_per_prompt`."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Divisor of the logits. 0 always takes the likeliest token. The smallest value above 0 is 0.01, as for vLLM."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of an answer. If unset, the maximum is `sampling.max_completion_tokens`."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that together have this probability."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this many likeliest tokens. 0 samples from all tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample from tokens with at least this share of the likeliest token's probability."""
    stop_strings: list[Annotated[str, Field(min_length=1)]] | None = None
    """Texts that end an answer. If unset, the texts of `sampling.stop_strings` end an answer."""

    @model_validator(mode="after")
    def _answers_differ(self) -> Self:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt ({self.samples_per_prompt}) above 1 needs a temperature above 0: at 0 all answers "
                "to a question are the same"
            )
        return self

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature ({self.temperature}) must be 0, which always takes the likeliest token, or at least "
                f"{MIN_TEMPERATURE}"
            )
        for k in self.pass_at_k:
            if not 1 <= k <= self.samples_per_prompt:
                raise ValueError(
                    f"pass_at_k ({k}) must be from 1 to samples_per_prompt ({self.samples_per_prompt}): k of "
                    "the answers to a question are drawn"
                )
        return self

    def is_due(self, policy_version: int, num_steps: int) -> bool:
        """Returns whether a policy version is evaluated in a run of `num_steps` steps."""
        if not self.sources:
            return False
        if policy_version == 0:
            return self.on_start
        every = self.every_steps
        return policy_version == num_steps or (every > 0 and policy_version % every == 0)
