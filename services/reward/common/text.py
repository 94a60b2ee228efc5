"""Free text: reading, cleaning, comparing, and forms that are the same for equal answers."""

import json
import re
import string
from collections import Counter
from typing import Any

from services.reward.common.verdict import Unscorable, acceptable_texts

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TURN = re.compile(
    r"<(?=[|｜][^\s<>]{1,64}[|｜]>|(?:start|end)_of_turn>|/?s>|[be]os>|</?SYS>>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])"
)
_PLAIN_NUMBER = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]*))?")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def same_words(answer: str, wanted: str) -> bool:
    """Returns whether both are equal after normalization. If nothing is left of them, as of "A" or "+", compares the
    originals without case and surrounding white space, so that an empty answer never counts."""
    got = normalized(answer)
    return got == normalized(wanted) and (bool(got) or answer.strip().lower() == wanted.strip().lower())


def clean(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_turns(text: str) -> str:
    """Puts a blank into each marker that begins or ends a turn in a chat template, such as <|im_end|>. Servers tokenize
    the templated text, so a marker in an answer would end the question."""
    return _TURN.sub(r"\g<0> ", text)


def normalized(text: str) -> str:
    """Lower-cases, removes ASCII punctuation and the words a, an, the, and extra spaces (arXiv:1606.05250)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_tags(answer: str) -> str:
    """Returns an answer without answer tags and markers of the assistant's turn."""
    for tag in ("<|assistant|>", "<answer>", "</answer>"):
        answer = answer.replace(tag, "")
    return answer.strip()


def last_between(text: str, start: str, end: str) -> str | None:
    """Returns the text between the last `start` that is followed by an `end`, and the first such `end`.

    Returns None without such a pair. The time is linear in the text.
    """
    last_end = text.rfind(end)
    opened = text.rfind(start, 0, last_end) if last_end >= 0 else -1
    return text[opened + len(start) :].partition(end)[0] if opened >= 0 else None


def token_f1(answer: str, wanted: str) -> float:
    """Returns the harmonic mean of precision and recall of the normalized words, counted with repetitions. If
    normalizing leaves nothing of `wanted`, as of "A", returns 1 for an equal answer, else 0."""
    got, want = Counter(normalized(answer).split()), Counter(normalized(wanted).split())
    if not want:
        return float(same_words(answer, wanted))
    num_common = (got & want).total()
    return 2 * num_common / (got.total() + want.total()) if num_common else 0.0


def listed_texts(label: Any) -> list[str]:
    """Returns the `acceptable_texts`; reads a label that is a JSON list written as text."""
    if isinstance(label, str) and label.lstrip().startswith("["):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):
            pass
    return acceptable_texts(label)


def label_number(label: Any, what: str) -> float:
    """Returns the label as a number. Raises `Unscorable` with a message that it must be `what`."""
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    try:
        if isinstance(label, bool):
            raise ValueError
        number = float(label)
    except (TypeError, ValueError):
        raise Unscorable(f"the label must be {what} (found: {label!r:.80})") from None
    if not abs(number) < float("inf"):
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


def word_form(answer: str) -> str:
    """Returns the normalized words of an answer, as `text.same_words` compares them."""
    return normalized(answer) or answer.strip().lower()
