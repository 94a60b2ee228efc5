"""What a verifier says about one completion."""

from dataclasses import dataclass
from typing import Any

from shoal.rollout import StepScore


@dataclass(frozen=True)
class Verdict:
    """A completion was judged."""

    value: float
    """In the range that the verifier documents."""
    detail: str = ""
    """For people: what was found in the completion."""
    step_scores: tuple[StepScore, ...] = ()
    """What a process verifier says of single steps, in order (see `advantage.step_rewards`)."""


class Unscorable(Exception):
    """The completion cannot be judged, for example because its label is malformed. The message says why."""


class Broken(Exception):
    """The verifier gave no verdict, and the message says what it did instead."""


def acceptable_texts(label: Any) -> list[str]:
    """The answers that a label allows: one text or number, or a list of them of which any will do.

    Numbers become text as a person writes them: 72.0, as it comes from the wire, is "72".

    Raises `Unscorable` when there is nothing to compare with.
    """
    texts = [_text(item) for item in (label if isinstance(label, list) else [label])]
    if not texts:
        raise Unscorable("the label is an empty list")
    return texts


def _text(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, str | int | float):
        raise Unscorable(f"the label must be text, a number or a list of those (found: {type(item).__name__})")
    if isinstance(item, float) and item.is_integer():
        return str(int(item))
    if not str(item).strip():
        raise Unscorable("the label is empty")
    return str(item)
