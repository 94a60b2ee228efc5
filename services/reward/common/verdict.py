"""The verdict of a verifier on a completion, and the acceptable answers of a label."""

from dataclasses import dataclass
from typing import Any

from shoal.scores import StepScore


@dataclass(frozen=True)
class Verdict:
    """The verdict of one verifier on one completion."""

    value: float
    """The value, in the range that the verifier documents."""
    detail: str = ""
    """The findings in the completion, for people."""
    answer: str | None = None
    """The completion's answer, in a form that is the same for equal answers and empty for no answer; None if the
    verifier does not compare answers with each other (see `Verifier.same_answers`)."""
    step_scores: tuple[StepScore, ...] = ()
    """Scores of single steps by a process verifier, in order (see `advantage.step_rewards`)."""


class Unscorable(Exception):
    """The completion cannot be judged, for example because its label is malformed. The message says why."""


class Broken(Exception):
    """The verifier gave no verdict. The message describes the verifier's behavior."""


def acceptable_texts(label: Any) -> list[str]:
    """Returns the answers that a label accepts: one text or number, or a list of them. 72.0, as 72 arrives over the
    wire, becomes "72". Raises `Unscorable` if there is nothing to compare with."""
    texts = [_text(item) for item in (label if isinstance(label, list) else [label])]
    if not texts:
        raise Unscorable("the label is an empty list")
    return texts


def _text(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, str | int | float):
        raise Unscorable(f"the label must be text, a number or a list of these (found: {type(item).__name__})")
    if isinstance(item, float) and item.is_integer():
        return str(int(item))
    if not str(item).strip():
        raise Unscorable("the label is empty")
    return str(item)
