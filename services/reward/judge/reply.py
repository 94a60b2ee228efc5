"""The reply of a judge, and the grade in it."""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from services.reward.common.verdict import Unscorable
from shoal.chat_templates.thoughts import without_thoughts

_FENCED = re.compile(r"\A```(?:json)?[ \t]*\n(.*)\n```\Z", re.DOTALL | re.IGNORECASE)
_SHOWN = 120


@dataclass(frozen=True)
class Reply:
    """A judge's reply."""

    text: str
    input_tokens: int
    output_tokens: int
    has_usage: bool
    """Whether the server reported how many tokens it used."""
    was_cut: bool
    """Whether the reply was cut at `max_tokens`."""


def read_reply(answer: Any) -> Reply:
    """Reads a chat completion. Raises LookupError, TypeError or ValueError for anything else."""
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str | None):
        raise ValueError("the content is not text")
    usage = answer.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    has_usage = all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
    num_read, num_written = counts if has_usage else (0, 0)
    return Reply(text or "", num_read or 0, num_written or 0, has_usage, choice.get("finish_reason") == "length")


def read_grade(reply: str, lowest: float, highest: float) -> tuple[float, str]:
    """Reads score and reasoning of a reply: one JSON object with a number SCORE from `lowest` to `highest`.

    Allows thoughts and one code fence around the object. Raises `Unscorable` for everything else, since a guessed grade
    would be a reward that no judge gave.
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
    reasoning = verdict.get("REASONING")
    return float(score), reasoning if isinstance(reasoning, str) else ""


def _parsed(text: str) -> Any:
    # Do not be strict: an unescaped line break inside a text leaves no doubt about the grade.
    return json.loads(text, strict=False, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key.casefold() for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _shown(text: str) -> str:
    return repr(text[:_SHOWN]) + ("..." if len(text) > _SHOWN else "")
