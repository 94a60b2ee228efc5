"""A letter among choices."""

import re
from collections import deque
from typing import Any

from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.section import Section

# A lower-case letter may be an article, unless something closes it.
_LETTER = (
    r"[(\[*_\s$]{0,9}(?:\\(?:text\w{0,9}|mathrm|mathbf)\{)?[(\[*_\s]{0,9}"
    r"([A-Z](?![A-Za-z0-9'’])|[a-z](?=\s{0,9}(?:[)\].:,;*}$]|\n|\Z)))"
)
_FIRST = re.compile(_LETTER)
_MARKED = re.compile(r"(?i:answer|choice|option)(?i:\s{1,9}is)?\s{0,9}:?" + _LETTER)
_STANDING = re.compile(r"^[ \t]{0,9}\*{0,2}([A-Z])(?:[).:*]|[ \t]{0,9}$)|\(([A-Z])\)|\*\*([A-Z])\*\*", re.MULTILINE)
_BOX = "\\boxed{"
# More letters after the chosen one, up to the end of the phrase: "B or C", "(A), (B).", "A B C D".
_MORE = re.compile(
    r"(?:[)\]}*_$]{0,9}(?:[ \t]{0,9}(?:[,/;&]|\b(?:or|and)\b)(?:[ \t]{0,9}(?:or|and)\b)?|[ \t]{1,9})"
    r"[(\[*_$ \t]{0,9}[A-Za-z](?![A-Za-z0-9'’])){1,25}(?=[)\]*_$ \t]{0,9}(?:[.}\n]|\Z))"
)
_SINGLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")


class MultipleChoiceOptions(Section):
    strict: bool = False
    """Accept only a marked answer: in a box, in <answer> tags, or after "answer is" or "answer:"."""


def verify(completion: str, label: Any, options: MultipleChoiceOptions = MultipleChoiceOptions()) -> Verdict:
    """Compares the chosen letter with the label's.

    The choice is the first of these that the completion has: the letter in the last <answer>...</answer>, in the last
    box, after the last "answer is", "answer:", "option" or "choice"; unless `strict`, the last letter written as a
    choice, "(B)", "**B**", "B." or "B)" at the start of a line, or the only letter of the text. Thoughts up to the last
    </think> do not count. Several letters in one position, "B or C", are all chosen.
    Label: a letter with or without parentheses, or a list of accepted ones.
    Value: 1 if each chosen letter is the label's, in any case, else 0.
    """
    wanted = {_wanted(text) for text in acceptable_texts(label)}
    letters = _choice(completion.rpartition("</think>")[2], options.strict)
    return Verdict(float(bool(letters) and wanted.issuperset(letters)), letters or "no choice")


def _wanted(label: str) -> str:
    letter = re.fullmatch(r"\s*(?:\\text\{)?[\(\[]?\s*([A-Za-z])\s*[\)\].:]?\}?\s*", label)
    if not letter:
        raise Unscorable(f"the label must be the letter of a choice (found: {label!r:.80})")
    return letter[1].upper()


def _choice(text: str, strict: bool) -> str:
    """Returns the chosen letters, in upper case, or an empty text."""
    tagged = last_between(text, "<answer>", "</answer>")
    if tagged is None and _BOX in text:
        tagged = text.rpartition(_BOX)[2]
    if tagged is not None:
        found = _FIRST.match(tagged) or (None if strict else _last(_MARKED, tagged))
        return _with_more(found, tagged) if found else ""
    if marked := _last(_MARKED, text):
        return _with_more(marked, text)
    if strict:
        return ""
    if standing := _last(_STANDING, text):
        return next(letter for letter in standing.groups() if letter).upper()
    alone = re.fullmatch(r"[^A-Za-z]*([A-Za-z])[^A-Za-z]*", text)
    return alone[1].upper() if alone else ""


def _with_more(found: re.Match[str], text: str) -> str:
    """Returns the letter found and those named with it."""
    more = _MORE.match(text, found.end(1))
    others = _SINGLE.findall(more[0]) if more else []
    return "".join([found[1], *others]).upper()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


VERIFIER = Verifier(verify, values="1 or 0", options=MultipleChoiceOptions)
