"""Constraints on repeating text: `copy:*`, `new:copy_span_idx`, `combination:*`."""

import re
from collections.abc import Iterator

from services.reward.verifiers.ifeval.arguments import Arguments

_SEPARATOR = "******"


def two_responses(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is two different texts separated by ******, and perhaps ****** around them."""
    parts = [part.strip() for part in response.split(_SEPARATOR)]
    if not all(parts[1:-1]):
        return False
    found = [part for part in parts if part]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(response: str, arguments: Arguments) -> bool:
    """Returns whether the response begins with `prompt_to_repeat`, ignoring case."""
    return response.strip().lower().startswith(arguments.text("prompt_to_repeat").lower())


def copy(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is `prompt_to_repeat`, ignoring case."""
    return _same(response, arguments.text("prompt_to_repeat"))


def copy_span(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is characters `n_start` up to `n_end` (excluded) of `prompt_to_repeat`, any case."""
    prompt = arguments.exact_text("prompt_to_repeat")
    start, end = arguments.number("n_start"), arguments.number("n_end")
    if start >= end:
        raise arguments.invalid("n_end", f"must be more than n_start, {start}")
    return _same(response, prompt[start:end])


def copies(response: str, arguments: Arguments) -> bool:
    """Returns whether the response is `prompt_to_repeat` `N` times, separated by ******, ignoring case."""
    prompt, wanted = arguments.text("prompt_to_repeat"), arguments.number("N", minimum=1)
    parts = response.split(_SEPARATOR)
    return len(parts) == wanted and all(_same(part, prompt) for part in parts)


def repeat_phrase(response: str, arguments: Arguments) -> bool:
    """Returns whether `phrase` occurs `small_n` times, each time from its first word to its last, and with exactly one
    word changed."""
    phrase, wanted = arguments.text("phrase").split(), arguments.number("small_n")
    first, last = ((re.escape if arguments.strict_wording else str)(phrase[edge]) for edge in (0, -1))
    opening, closing = arguments.expression("phrase", f"(?:{first}) "), arguments.expression("phrase", f" (?:{last})")
    found = list(_between(response, opening, closing))
    return len(found) == wanted and all(_one_changed(words, phrase) for words in found)


def _between(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> Iterator[list[str]]:
    """Yields the words from each opening to the next closing, within a line and without overlaps."""
    for line in text.split("\n"):
        position = 0
        while (start := opening.search(line, position)) and (end := closing.search(line, start.end())):
            yield line[start.start() : end.end()].split()
            position = max(end.end(), position + 1)


def _one_changed(words: list[str], phrase: list[str]) -> bool:
    return len(words) == len(phrase) and sum(a != b for a, b in zip(words, phrase, strict=True)) == 1


def _same(text: str, other: str) -> bool:
    return text.strip().lower() == other.strip().lower()
