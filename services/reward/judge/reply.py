"""The verdict in a judge's reply."""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from services.reward.common.verdict import Unscorable
from shoal.chat_templates.thoughts import without_thoughts

_FENCED = re.compile(r"\A```(?:json)?[ \t]*\n(.*)\n```\Z", re.DOTALL | re.IGNORECASE)
_SHOWN = 120


@dataclass(frozen=True)
class Grade:
    """A judge's grade."""

    score: float
    reasoning: str


def read_grade(reply: str, lowest: float, highest: float) -> Grade:
    """Reads the grade of a reply: one JSON object with a number SCORE from `lowest` to `highest`.

    Thoughts and one code fence around the object are allowed, but no other text. Raises `Unscorable` for everything
    else, since a guessed grade would be a reward that no judge gave.
    """
    text = reply.strip()
    try:
        # Try the whole reply first: the mark of a thought inside the JSON may be a quotation from the answer.
        verdict = _parsed(text)
    except (ValueError, RecursionError):
        text = without_thoughts(reply).strip()
        if fenced := _FENCED.match(text):
            text = fenced[1].strip()
        try:
            verdict = _parsed(text)
        except (ValueError, RecursionError) as error:
            raise Unscorable(
                f"the judge's reply is not the JSON object that it was asked for ({error}): {_shown(text)}"
            ) from None
    if not isinstance(verdict, dict):
        raise Unscorable(f"the judge's reply is JSON, but not an object: {_shown(text)}")
    if "SCORE" not in verdict:
        raise Unscorable(f"the judge's reply has no SCORE: {_shown(text)}")
    score = verdict["SCORE"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not lowest <= score <= highest:
        raise Unscorable(f"the judge's SCORE must be a number from {lowest:g} to {highest:g} (found: {score!r:.80})")
    return Grade(float(score), _text(verdict.get("REASONING")))


def _parsed(text: str) -> Any:
    # Do not be strict: an unescaped line break inside a text leaves no doubt about the grade.
    return json.loads(text, strict=False, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key.casefold() for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _shown(text: str) -> str:
    return repr(text[:_SHOWN]) + ("..." if len(text) > _SHOWN else "")
