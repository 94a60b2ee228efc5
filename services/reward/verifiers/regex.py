"""A regular expression found in the completion."""

from functools import lru_cache
from typing import Any

import regex
from pydantic import Field

from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section


class RegexOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for one search. After this time the completion is UNSCORABLE."""


def verify(completion: str, label: Any, options: RegexOptions = RegexOptions()) -> Verdict:
    """Searches the completion for the label's pattern.

    Label: a regular expression (syntax of the package `regex`, a superset of that of `re`), or a list of these. Write
    flags into it: "(?i)" for any case, "\\A...\\Z" for the whole text. Value: 1 if a pattern is found, else 0. A
    malformed pattern, or one that takes longer than `timeout_s`, makes the completion unscorable.
    """
    patterns = [_compiled(text) for text in acceptable_texts(label)]
    try:
        for pattern in patterns:
            if found := pattern.search(completion, timeout=options.timeout_s):
                return Verdict(1.0, found.group())
    except TimeoutError:
        raise Unscorable(
            f"the label's pattern takes longer than reward.verifiers.regex.timeout_s ({options.timeout_s:g} s)"
        ) from None
    except MemoryError:
        raise Unscorable("the label's pattern recurses endlessly, or runs out of memory") from None
    return Verdict(0.0, "not found")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise Unscorable(f"the label is not a regular expression: {pattern!r:.80}: {error}") from None


VERIFIER = Verifier(verify, values="1 or 0", options=RegexOptions)
