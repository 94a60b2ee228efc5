"""Tables of `[reward]` that shape a reward beside its verifiers; services/reward/compose.py adds them up."""

from typing import Literal

from pydantic import Field, field_validator

from shoal.config.section import Section


class FormatRewardConfig(Section):
    kind: Literal["none", "r1", "think"] = "none"
    """The required format: that of the verifier `r1_format` (`</think>`, then `<answer>...</answer>`) or of
    `think_format` (begins with one `<think>...</think>`)."""
    mode: Literal["gate", "add"] = "gate"
    """`gate`: verifiers count only if the format is right. `add`: the right format adds `value`, also for a wrong
    answer (open-instruct's `additive_format_reward`)."""
    value: float = 1.0
    """Reward of the right format with `add`, and with `gate` where verifiers do not count (`apply_verifiable_reward`,
    `only_reward_good_outputs`)."""


class OverlongConfig(Section):
    factor: float = Field(default=0.0, ge=0)
    """Penalty of a completion of `max_length_tokens` (DAPO's soft punishment, arXiv:2503.14476); 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which the full penalty applies; if unset, `sampling.max_completion_tokens`."""
    buffer_tokens: int = Field(default=1024, ge=0)
    """Tokens before that over which the penalty grows linearly; at most the limit."""


class LengthPenaltyConfig(Section):
    coef: float = Field(default=0.0, ge=0)
    """Penalty of a completion of `max_length_tokens`, and proportionally less of a shorter one; 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which the full penalty applies; if unset, `sampling.max_completion_tokens`."""
    only_correct: bool = True
    """Penalize only completions that every verifier finds correct, so that a wrong one gains nothing by being short."""


class CosineLengthConfig(Section):
    """A reward by length: half a cosine from one value at length 0 to another at the limit (arXiv:2502.03373, section
    4)."""

    factor: float = Field(default=0.0, ge=0)
    """Factor of the reward; 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """The limit; if unset, `sampling.max_completion_tokens`."""
    correct_short: float = 1.0
    """Value of a correct completion of length 0."""
    correct_long: float = 0.5
    """Value of a correct completion at the limit."""
    wrong_short: float = -1.0
    """Value of a wrong completion of length 0."""
    wrong_long: float = -0.5
    """Value of a wrong completion at the limit."""


class RepetitionPenaltyConfig(Section):
    max_penalty: float = Field(default=0.0, le=0)
    """Penalty if every n-gram is a repetition (arXiv:2502.03373, section 4), and otherwise proportional to their share;
    0 for none."""
    ngram_size: int = Field(default=3, ge=1)
    """Length of an n-gram, in tokens."""
    verifiers: list[str] = Field(default_factory=list)
    """Penalize only completions that one of these verifiers scores; if empty, all."""

    @field_validator("verifiers")
    @classmethod
    def _are_in_lower_case(cls, verifiers: list[str]) -> list[str]:
        return [name.lower() for name in verifiers]
