"""The `[evaluation]` table: held-out questions, and how the policy answers them."""

from typing import Self

from pydantic import Field, model_validator

from shoal.config.data import SourceConfig
from shoal.config.section import Section


class EvaluationConfig(Section):
    """Held-out questions that the policy answers at the end of the run and, if asked, on the way. All answers of an
    evaluation are of one policy version: no step is taken while they are sampled."""

    sources: list[SourceConfig] = Field(default_factory=list)
    """Where the questions come from; none means no evaluation."""
    num_prompts: int = Field(default=200, ge=1)
    """Questions to ask, the first of the sources that are not among the training prompts."""
    held_out: bool = True
    """Leave out questions that are trained on. `false` asks them too, as open-instruct does: then a rate says what was
    learned by heart as well."""
    every_steps: int = Field(default=0, ge=0)
    """Train steps from one evaluation to the next; 0 evaluates nothing on the way. The last policy is evaluated in
    any case."""
    on_start: bool = True
    """Evaluate step 0 too, the policy before training."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers to each question; pass@k is estimated for k = 1, 2, 4, ... up to this."""
    temperature: float = Field(default=0.0, ge=0)
    """Divides the logits; 0 takes the likeliest token each time."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Longest answer; unset is `sampling.max_completion_tokens`."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that together have this probability."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this many likeliest tokens; 0 is all of them."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample from tokens that have at least this share of the likeliest one's probability."""

    @model_validator(mode="after")
    def _answers_differ(self) -> Self:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt ({self.samples_per_prompt}) above 1 needs a temperature above 0: at 0 all answers "
                "to a question are the same"
            )
        return self

    def is_due(self, policy_version: int, num_steps: int) -> bool:
        """Whether the policy of a step is to be evaluated, in a run of so many steps."""
        if not self.sources:
            return False
        if policy_version == 0:
            return self.on_start
        every = self.every_steps
        return policy_version == num_steps or (every > 0 and policy_version % every == 0)
