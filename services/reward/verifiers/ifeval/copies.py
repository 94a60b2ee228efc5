"""Constraints on saying something again: `copy:*`, `new:copy_span_idx`, `combination:*`."""

import re
from collections.abc import Iterator

from services.reward.verifiers.ifeval.arguments import Arguments

_SEPARATOR = "******"


def two_responses(response: str, given: Arguments) -> bool:
    """Two different texts between ******; a blank before the first or after the second mark does not count."""
    parts = [part.strip() for part in response.split(_SEPARATOR)]
    if not all(parts[1:-1]):
        return False
    found = [part for part in parts if part]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(response: str, given: Arguments) -> bool:
    """It begins with `prompt_to_repeat`, case aside."""
    prompt = given.text("prompt_to_repeat").lower()
    return response.strip().lower().startswith(prompt)


def copy(response: str, given: Arguments) -> bool:
    """It is `prompt_to_repeat`, case aside."""
    return _same(response, given.text("prompt_to_repeat"))


def copy_span(response: str, given: Arguments) -> bool:
    """It is `prompt_to_repeat` from character `n_start` to before `n_end`, case aside."""
    prompt, start, end = given.exact_text("prompt_to_repeat"), given.number("n_start"), given.number("n_end")
    if start >= end:
        raise given.invalid("n_end", f"must be more than n_start, {start}")
    return _same(response, prompt[start:end])


def copies(response: str, given: Arguments) -> bool:
    """It is `N` times `prompt_to_repeat` with ****** in between, case aside."""
    prompt, wanted = given.text("prompt_to_repeat"), given.number("N", least=1)
    parts = response.split(_SEPARATOR)
    return len(parts) == wanted and all(_same(part, prompt) for part in parts)


def repeat_phrase(response: str, given: Arguments) -> bool:
    """`phrase` is there `small_n` times, from its first word to its last, each time with exactly one word changed."""
    phrase, wanted = given.text("phrase").split(), given.number("small_n")
    first, last = ((re.escape if given.strict_wording else str)(phrase[edge]) for edge in (0, -1))
    opening, closing = given.expression("phrase", f"(?:{first}) "), given.expression("phrase", f" (?:{last})")
    found = list(_between(response, opening, closing))
    return len(found) == wanted and all(_one_changed(words, phrase) for words in found)


def _between(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> Iterator[list[str]]:
    """The words from each opening to the next closing, within a line and without overlaps."""
    for line in text.split("\n"):
        position = 0
        while (start := opening.search(line, position)) and (end := closing.search(line, start.end())):
            yield line[start.start() : end.end()].split()
            position = max(end.end(), position + 1)


def _one_changed(words: list[str], phrase: list[str]) -> bool:
    return len(words) == len(phrase) and sum(a != b for a, b in zip(words, phrase, strict=True)) == 1


def _same(text: str, other: str) -> bool:
    return text.strip().lower() == other.strip().lower()
