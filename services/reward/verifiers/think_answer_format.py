"""Thoughts and answer in tags, each tag on a line of its own (open-r1)."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section

_START, _BETWEEN, _END = "<think>\n", "\n</think>\n<answer>\n", "\n</answer>"
_FENCE = "```"


class ThinkAnswerOptions(Section):
    code_language: str = ""
    """Language of a fenced block that the answer must contain. If empty, no block is required."""


def verify(completion: str, label: Any, options: ThinkAnswerOptions = ThinkAnswerOptions()) -> Verdict:
    """Looks for <think>, thoughts, </think>, <answer>, an answer and </answer>, each tag a line of its own.

    The completion begins with <think>, and <answer> is the line after </think>. Lines after </answer> do not matter.
    Label: anything. Value: 1 if this is found, else 0.
    """
    return Verdict(float(has_think_answer_format(completion, options.code_language)))


def has_think_answer_format(completion: str, code_language: str = "") -> bool:
    """Returns whether the format is found. With a `code_language`, the answer must contain a fenced block of that
    language. Takes the first of each tag, so the time is linear in the text."""
    if not completion.startswith(_START):
        return False
    position = _after(completion, _BETWEEN, len(_START))
    if code_language:
        position = _after(completion, _FENCE, _after(completion, _FENCE + code_language, position))
    while (position := _after(completion, _END, position)) >= 0:
        if completion[position : position + 1] in ("", "\n"):
            return True
    return False


def _after(text: str, part: str, start: int) -> int:
    """Returns the index after the first occurrence of a part from `start` on; -1 if there is none, or `start` is -1."""
    found = text.find(part, start) if start >= 0 else -1
    return found + len(part) if found >= 0 else -1


VERIFIER = Verifier(verify, values="1 or 0", options=ThinkAnswerOptions, reads="completion")
