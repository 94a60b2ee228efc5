"""A regular expression that is found in the completion."""

from functools import lru_cache
from typing import Any

import regex

from services.reward.verdict import Unscorable, Verdict, acceptable_texts


def verify(completion: str, label: Any, *, timeout_s: float = 1.0) -> Verdict:
    """Searches the completion for the label's pattern.

    Label: a regular expression (syntax of the package `regex`, which is that of `re` and more), or a list of them
    of which any will do. Write flags into it: "(?i)" for any case, "\\A...\\Z" for the whole text. Value: 1 if one
    is found, else 0. A pattern that is none, or takes longer than `timeout_s`, makes the completion unscorable.
    """
    patterns = [_compiled(text) for text in acceptable_texts(label)]
    try:
        for pattern in patterns:
            if found := pattern.search(completion, timeout=timeout_s):
                return Verdict(1.0, found.group())
    except TimeoutError:
        raise Unscorable(
            f"the label's pattern takes longer than reward.verifiers.regex.timeout_s ({timeout_s:g} s)"
        ) from None
    except MemoryError:
        raise Unscorable("the label's pattern recurses without end, or needs more memory than there is") from None
    return Verdict(0.0, "not found")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise Unscorable(f"the label is no regular expression: {pattern!r:.80}: {error}") from None
