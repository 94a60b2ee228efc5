"""Parts of the `[reward]` table that shape a reward beside its verifiers; services/reward/compose.py adds them up."""

from typing import Literal

from pydantic import Field

from shoal.config.section import Section


class FormatRewardConfig(Section):
    kind: Literal["none", "r1", "think"] = "none"
    """The form that is asked for: that of the verifier `r1_format` (`</think>`, then `<answer>...</answer>`) or of
    `think_format` (begins with one `<think>...</think>`)."""
    mode: Literal["gate", "add"] = "gate"
    """`gate`: verifiers pay only where the form is right. `add`: the form is paid `value` beside them, also for a
    wrong answer (open-instruct's `additive_format_reward`)."""
    value: float = 1.0
    """What the form is worth with `add`, and with `gate` where verifiers are not paid (`apply_verifiable_reward`,
    `only_reward_good_outputs`)."""


class OverlongConfig(Section):
    factor: float = Field(default=0.0, ge=0)
    """What a completion at `max_length_tokens` loses (DAPO's soft punishment, arXiv:2503.14476); 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which all of it is lost; left out, `sampling.max_completion_tokens`."""
    buffer_tokens: int = Field(default=1024, ge=0)
    """Tokens before that over which the loss grows in a line; at most as many as the limit."""


class LengthPenaltyConfig(Section):
    coef: float = Field(default=0.0, ge=0)
    """What a completion of `max_length_tokens` loses; a shorter one loses its share of that. 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Length from which all of it is lost; left out, `sampling.max_completion_tokens`."""
    only_correct: bool = True
    """Take it only from completions that every verifier calls correct, so that a wrong one gains nothing by being
    short."""


class CosineLengthConfig(Section):
    """A cosine from one value at length 0 to another at the limit (arXiv:2502.03373, section 4)."""

    factor: float = Field(default=0.0, ge=0)
    """Factor of what it gives; 0 for none."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """The limit; left out, `sampling.max_completion_tokens`."""
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
    """What is added where everything is repetition (arXiv:2502.03373, section 4), otherwise the share of repeated
    n-grams of it; 0 for none."""
    ngram_size: int = Field(default=3, ge=1)
    """Tokens in a row that count as one."""
