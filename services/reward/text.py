"""How several verifiers read, show and compare free text."""

import json
import re
import string
from collections import Counter
from typing import Any

from services.reward.verdict import Unscorable, acceptable_texts

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TURN = re.compile(
    r"<(?=[|｜][^\s<>]{1,64}[|｜]>|(?:start|end)_of_turn>|/?s>|[be]os>|</?SYS>>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])"
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def same_words(answer: str, wanted: str) -> bool:
    """Whether both are equal once normalized; where nothing is left of them, as of "A" or "+", as they stand, but for
    case and white space around them. So an empty answer is no answer."""
    got = normalized(answer)
    return got == normalized(wanted) and (bool(got) or answer.strip().lower() == wanted.strip().lower())


def clean(text: str) -> str:
    """Without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_turns(text: str) -> str:
    """With a blank inside whatever begins or ends a turn in a chat template, such as <|im_end|>: servers make tokens of
    the templated text, and would end the question where an answer says so."""
    return _TURN.sub(r"\g<0> ", text)


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and the words a, an, the, and with single spaces (arXiv:1606.05250)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_thinking(text: str) -> str:
    """What follows the last </think>, without answer tags."""
    answer = text.replace("<|assistant|>", "").strip().rpartition("</think>")[2]
    return answer.replace("<answer>", "").replace("</answer>", "").strip()


def last_between(text: str, start: str, end: str) -> str | None:
    """The text from the last `start` that an `end` follows, to the first such `end`.

    None without such a pair. Linear in the text.
    """
    last_end = text.rfind(end)
    opened = text.rfind(start, 0, last_end) if last_end >= 0 else -1
    return text[opened + len(start) :].partition(end)[0] if opened >= 0 else None


def token_f1(answer: str, wanted: str) -> float:
    """Harmonic mean of precision and recall of normalized words, each counted as often as it occurs. Where nothing is
    left of what is wanted, as of "A", 1 for that alone."""
    got, want = Counter(normalized(answer).split()), Counter(normalized(wanted).split())
    if not want:
        return float(same_words(answer, wanted))
    num_common = (got & want).total()
    return 2 * num_common / (got.total() + want.total()) if num_common else 0.0


def listed_texts(label: Any) -> list[str]:
    """As `acceptable_texts`; a label that is a JSON list, written as text, is that list."""
    if isinstance(label, str) and label.lstrip().startswith("["):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):
            pass
    return acceptable_texts(label)


def label_number(label: Any, what: str) -> float:
    """The label as a number. Raises `Unscorable` that says `what` it should be."""
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
