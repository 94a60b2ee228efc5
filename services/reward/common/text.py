"""Free text: reading, cleaning, comparing, and forms that are the same for equal answers."""

import contextlib
import json
import math
import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TURN = re.compile(
    r"<(?=[|｜][^\s<>]{1,64}[|｜]>|(?:start|end)_of_turn>|/?s>|[be]os>|</?SYS>>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])"
)
_PLAIN_NUMBER = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]*))?")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def words_verdict(answer: str, wanted: Iterable[str]) -> Verdict:
    """Returns the verdict 1 if the answer has the same words as a wanted text, else 0."""
    form = word_form(answer)
    return Verdict(float(form in map(word_form, wanted)), answer, form)


def word_form(answer: str) -> str:
    """Returns the normalized words of an answer. If normalizing leaves nothing, as for "A" or "+", returns the answer
    in lower case, without surrounding white space."""
    return normalized(answer) or answer.strip().lower()


def clean(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_turns(text: str) -> str:
    """Puts a blank into each marker of a turn in a chat template, such as <|im_end|>. Servers tokenize the templated
    text, so a marker in an answer would end the question."""
    return _TURN.sub(r"\g<0> ", text)


def normalized(text: str) -> str:
    """Lower-cases a text; removes ASCII punctuation, the words a, an and the, and extra spaces (arXiv:1606.05250)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_tags(answer: str) -> str:
    """Returns an answer without answer tags and markers of the assistant's turn."""
    for tag in ("<|assistant|>", "<answer>", "</answer>"):
        answer = answer.replace(tag, "")
    return answer.strip()


def last_between(text: str, start: str, end: str) -> str | None:
    """Returns the text between the last `start` that is followed by an `end`, and the first such `end`; None without
    such a pair. The time is linear in the text."""
    last_end = text.rfind(end)
    opened = text.rfind(start, 0, last_end) if last_end >= 0 else -1
    return text[opened + len(start) :].partition(end)[0] if opened >= 0 else None


def tagged_or_all(text: str) -> str:
    """Returns the last <answer>...</answer>, or the whole text if there is none."""
    answer = last_between(text, "<answer>", "</answer>")
    return (text if answer is None else answer).strip()


def token_f1(answer: str, wanted: str) -> float:
    """Returns the harmonic mean of precision and recall of the normalized words, counted with repetitions. If
    normalizing leaves nothing of `wanted`, as for "A", returns 1 for an equal answer, else 0."""
    got, want = Counter(normalized(answer).split()), Counter(normalized(wanted).split())
    if not want:
        return float(word_form(answer) == word_form(wanted))
    num_common = (got & want).total()
    return 2 * num_common / (got.total() + want.total()) if num_common else 0.0


def listed_texts(label: Any) -> list[str]:
    """Returns the `acceptable_texts` of a label, which may also be a JSON list written as text."""
    if isinstance(label, str) and label.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            label = json.loads(label)
    return acceptable_texts(label)


def label_number(label: Any, what: str) -> float:
    """Returns the label as a number. Raises `Unscorable` with a message that it must be `what`."""
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    try:
        number = math.nan if isinstance(label, bool) else float(label)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Unscorable(f"the label must be {what} (found: {label!r:.80})")
    return number


def number_form(number: str) -> str:
    """Returns a decimal number without meaningless zeros, and any other text unchanged. A plus sign stays."""
    found = _PLAIN_NUMBER.fullmatch(number)
    if not found or not (found[2] or found[3]):
        return number
    fraction = (found[3] or "").rstrip("0")
    value = (found[2].lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return value if value == "0" else found[1] + value
