"""Tables of `[reward]` that shape a reward beside its verifiers. services/reward/compose.py adds up the parts."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.section import Section


class FormatRewardConfig(Section):
    kind: Literal["none", "r1", "think", "think_answer"] = "none"
    """The required format. `r1` is the format of the verifier `r1_format`: `</think>`, then `<answer>...</answer>`.
    `think` is the format of `think_format`: the completion begins with one `<think>...</think>`. `think_answer` is the
    format of `think_answer_format`: thoughts and answer are in tags, and each tag has a line of its own."""
    mode: Literal["gate", "add"] = "gate"
    """How the format affects the reward. With `gate`, verifiers count only if the format is right. With `add`, the
    right format adds `value`, also for a wrong answer (open-instruct's `additive_format_reward`)."""
    value: float = 1.0
    """Reward for the right format with `add`. With `gate` the right format gets this reward only if verifiers do not
    count because of `apply_verifiable_reward` or `only_reward_good_outputs`."""
    code_language: str = ""
    """Language of a fenced block that the answer must contain. Applies with `think_answer`. Empty requires no block."""

    @model_validator(mode="after")
    def _language_has_a_format(self) -> Self:
        if self.code_language and self.kind != "think_answer":
            raise ValueError(
                f'code_language ({self.code_language!r}) applies only with kind "think_answer", but kind is '
                f"{self.kind!r}: set kind, or leave code_language out"
            )
        return self


class StyleConfig(Section):
    """Rewards for how a completion is written, whatever the completion answers (open-r1's recipes)."""

    tags: float = Field(default=0.0, ge=0)
    """Factor of the value of the verifier `think_answer_tags`. 0 disables this reward."""
    steps: float = Field(default=0.0, ge=0)
    """Factor of the value of the verifier `reasoning_steps`. 0 disables this reward."""


class OverlongConfig(Section):
    factor: float = Field(default=0.0, ge=0)
    """Penalty at `max_length_tokens` (DAPO's soft punishment, arXiv:2503.14476). 0 disables the penalty."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which the full penalty applies. If unset, the length is `sampling.max_completion_tokens`."""
    buffer_tokens: int = Field(default=1024, ge=0)
    """Tokens before `max_length_tokens` over which the penalty grows linearly. At most `max_length_tokens`."""


class LengthPenaltyConfig(Section):
    coef: float = Field(default=0.0, ge=0)
    """Penalty at `max_length_tokens`, and proportionally less for a shorter completion. 0 disables the penalty."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which the full penalty applies. If unset, the length is `sampling.max_completion_tokens`."""
    only_correct: bool = True
    """Penalize only correct completions, so that a wrong completion gains nothing by being short."""


class CosineLengthConfig(Section):
    """A reward by length: half a cosine wave from length 0 to the length limit (arXiv:2502.03373, section 4)."""

    factor: float = Field(default=0.0, ge=0)
    """Factor of the reward by length. 0 disables this reward."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """The length limit in tokens. If unset, the limit is `sampling.max_completion_tokens`."""
    max_length_characters: int | None = Field(default=None, ge=1)
    """The length limit in characters of the text, in place of tokens (open-r1)."""
    correct_short: float = 1.0
    """Value of a correct completion of length 0."""
    correct_long: float = 0.5
    """Value of a correct completion at the length limit."""
    wrong_short: float = -1.0
    """Value of a wrong completion of length 0."""
    wrong_long: float = -0.5
    """Value of a wrong completion at the length limit."""

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_length_tokens is not None and self.max_length_characters is not None:
            raise ValueError("give max_length_tokens or max_length_characters, not both")
        return self


class RepetitionPenaltyConfig(Section):
    max_penalty: float = Field(default=0.0, le=0)
    """Penalty if every n-gram is a repetition (arXiv:2502.03373, section 4). Otherwise the penalty is proportional to
    the share of repeated n-grams. 0 disables the penalty."""
    ngram_size: int = Field(default=3, ge=1)
    """Number of units in an n-gram; `unit` selects tokens or words."""
    unit: Literal["tokens", "words"] = "tokens"
    """Unit of an n-gram: tokens (TRL), or words in lower case between white space (open-r1, ROLL)."""
    verifiers: list[str] = Field(default_factory=list)
    """Penalize only completions that one of these verifiers scores. If empty, penalize all completions."""

    @field_validator("verifiers")
    @classmethod
    def _are_in_lower_case(cls, verifiers: list[str]) -> list[str]:
        return [name.lower() for name in verifiers]
