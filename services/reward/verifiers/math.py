"""Mathematical equality of the final answer, by math-verify (github.com/huggingface/Math-Verify)."""

import importlib
import re
from functools import lru_cache
from typing import Any

from services.reward.verdict import Unscorable, Verdict, acceptable_texts

# A label that says itself where its answer stands.
_DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


def load() -> None:
    """Imports what judging needs; takes a second."""
    importlib.import_module("math_verify")


def verify(completion: str, label: Any) -> Verdict:
    """Compares the completion's last answer (boxed, in LaTeX, or a plain expression) with the label.

    Label: LaTeX with or without delimiters, or a whole solution with a boxed answer; or a list of those, of which
    any will do. Value: 1 if math-verify finds them equal (numerically to 6 decimals, else symbolically; sets and
    intervals by their elements), else 0.
    """
    from math_verify import parse
    from math_verify import verify as equal

    golds = [_gold(text) for text in acceptable_texts(label)]
    if not all(golds):
        raise Unscorable(f"the label holds no mathematics: {label!r:.80}")
    # Its own time limits rest on SIGALRM and swallow what they interrupt; the pool's deadline stands for them.
    answer = parse(completion, parsing_timeout=None)
    if not answer:
        return Verdict(0.0, "no answer found")
    correct = any(equal(gold, answer, timeout_seconds=None) for gold in golds)
    # The last item is the answer as it was written; printing what it was parsed to can take for ever.
    return Verdict(float(correct), answer[-1] if isinstance(answer[-1], str) else "")


@lru_cache(maxsize=256)
def _gold(label: str) -> list[Any]:
    """The label parsed, once for all completions of a group: most of the time goes into this."""
    from math_verify import parse

    parsed: list[Any] = parse(label if _DELIMITED.search(label) else f"${label}$", parsing_timeout=None)
    return parsed
