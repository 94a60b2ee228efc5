"""Scores of completions: the verdict of each verifier, and the reward that follows from the verdicts."""

from dataclasses import dataclass
from enum import StrEnum

MAX_REWARD = 1e12
"""The largest magnitude of a reward. Advantages square rewards, and a float has no room for larger squares."""


class ScoreOutcome(StrEnum):
    """The outcome of scoring a completion."""

    SCORED = "scored"
    UNSCORABLE = "unscorable"
    """The completion cannot be judged; it has no reward."""
    FAILED = "failed"
    """The verifier broke or timed out; never a reward of 0."""


@dataclass(frozen=True)
class StepScore:
    """A verifier's score of one step of a completion."""

    end_char: int
    """The number of characters of the completion's text up to the end of the step."""
    value: float


@dataclass(frozen=True)
class VerifierScore:
    """The verdict of one verifier on one completion."""

    verifier: str
    outcome: ScoreOutcome
    value: float = 0.0
    """The value of the verifier. Meaningful only when the outcome is SCORED."""
    detail: str = ""
    duration_s: float = 0.0
    step_scores: tuple[StepScore, ...] = ()
    """The scores of steps, in order; empty if the verifier scores only the whole completion."""
    code_digest: str = ""
    """SHA-256, in hex, of the verifier's code, if it is not part of Shoal."""
    answer: str | None = None
    """The answer in the completion, the same text for equal answers; empty for no answer, None if unknown."""


@dataclass(frozen=True)
class RewardPart:
    """One summand of the reward of a completion."""

    name: str
    """The name of the summand, for example "verifiable" or "overlong"."""
    value: float
    """The amount that the summand adds to the reward."""


@dataclass(frozen=True)
class Score:
    """The reward of one completion."""

    sample_index: int
    outcome: ScoreOutcome
    """The outcome: SCORED only if every verifier scored, otherwise the worst outcome of the verifiers."""
    reward: float
    """The reward of the table `reward`, by default the weighted sum of the verifiers' values. Meaningful when
    SCORED."""
    verifier_scores: tuple[VerifierScore, ...] = ()
    parts: tuple[RewardPart, ...] = ()
    """The summands of the reward."""
