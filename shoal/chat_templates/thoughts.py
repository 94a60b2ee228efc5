"""Thoughts in the text of a model. All text outside of thoughts is the answer.

The marks come from the models' own chat templates and from the engines' parsers for these models. Marks that are
ordinary words, such as Granite's "Here is my thought process:", are not included.
"""

import re
from collections.abc import Sequence

_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think")
MARKS = {f"<{tag}>": f"</{tag}>" for tag in _TAGS} | {
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
}
"""The mark that ends a thought, by the mark that begins the thought. Case does not matter in marks of XML form.
docs/rewards.md names the models of the marks."""

_ENDS = frozenset(MARKS.values())
_MARK = re.compile(
    r"[<\[◁](?:" + "|".join(re.escape(mark[1:]) for mark in sorted([*MARKS, *_ENDS], key=len, reverse=True)) + ")",
    re.IGNORECASE,
)
_QUOTES = "\"'`"


def without_thoughts(text: str) -> str:
    """Returns the text outside of all thoughts: the answer. A line break replaces each thought and the white space
    around it."""
    spans = thoughts(text)
    if not spans:
        return text
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    pieces = [text[start:end] for start, end in zip([0, *ends], [*starts, len(text)], strict=True)]
    first, last = pieces[0].rstrip(), pieces[-1].lstrip()
    return "\n".join(filter(None, [first, *(piece.strip() for piece in pieces[1:-1]), last]))


def thoughts(text: str) -> Sequence[tuple[int, int]]:
    """Returns the begin and end of each thought, in order. Both include the marks of the thought.

    A thought ends with the first matching end mark, or else at the end of the text. An end mark without a begin mark
    ends a thought that began with the text: the prompt had opened the thought (`opened_thought`). Outside of thoughts,
    a mark in quotation marks or backticks has no effect. The time is linear in the length of the text.
    """
    spans: list[tuple[int, int]] = []
    start, closing = 0, ""
    for found in _MARK.finditer(text):
        mark = _canonical(found[0])
        if closing:
            if mark == closing:
                spans.append((start, found.end()))
                closing = ""
        elif mark in MARKS and not _is_quoted(found):
            start, closing = found.start(), MARKS[mark]
        elif mark in _ENDS and not _is_quoted(found):
            spans = [(0, found.end())]
    if closing:
        spans.append((start, len(text)))
    return spans


def next_thought(text: str, start: int, before: int) -> tuple[int, int] | None:
    """Returns the begin and end of the first thought that begins in text[start:before], including the marks; None if
    there is none. `start` must be outside of thoughts."""
    for found in _MARK.finditer(text, start, before):
        closing = MARKS.get(_canonical(found[0]))
        if closing is not None and not _is_quoted(found):
            ends = (end.end() for end in _MARK.finditer(text, found.end()) if _canonical(end[0]) == closing)
            return found.start(), next(ends, len(text))
    return None


def answer_start(text: str) -> int:
    """Returns the begin of the answer, after the thoughts with which a text begins, or which the prompt had opened."""
    first = _MARK.search(text)
    start = first.end() if first and _canonical(first[0]) in _ENDS and not _is_quoted(first) else 0
    while (thought := next_thought(text, start, len(text))) and not text[start : thought[0]].strip():
        start = thought[1]
    return start


def opened_thought(prompt: str) -> str:
    """Returns the begin mark of the thought that a prompt leaves open for the policy, as chat templates may do; empty
    if the prompt leaves no thought open."""
    end = prompt[-_LONGEST * 2 :].rstrip()
    return next((mark for mark in MARKS if end.endswith(mark)), "")


_LONGEST = max(map(len, MARKS))


def _canonical(mark: str) -> str:
    return mark if mark in MARKS or mark in _ENDS else mark.lower()


def _is_quoted(found: re.Match[str]) -> bool:
    """Returns whether a mark stands between two equal quotation marks, neither of which belongs to a fence."""
    text, start, end = found.string, found.start(), found.end()
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    return before[-1:] in _QUOTES and before[-1:] == after[:1] != "" and "```"[:2] not in (before, after)
