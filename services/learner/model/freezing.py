"""The parameters that are not trained, by the entries of `learner.freeze`."""

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from shoal.errors import InvalidArgument

_MAX_NAMES = 8


def freeze(lm: Any, entries: list[str]) -> None:
    """Freezes the parameters that the entries of `learner.freeze` name. The parameters may be sharded.

    Raises `InvalidArgument` if an entry fits no parameter, or if no parameter is left to train.
    """
    names = [name for name, _ in lm.named_parameters()]
    model = type(lm).__name__
    for entry in entries:
        if not any(_fits(name, entry) for name in names):
            wanted = "matches" if "*" in entry else "begins with"
            similar = _similar(entry, names)
            meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
            raise InvalidArgument(
                f'learner.freeze: no parameter of a {model} has a name that {wanted} "{entry}"{meant}; use, for '
                f"example, {', '.join(_starts(names))} (a tied parameter is known only by its first name)"
            )
    frozen = {name for name in names if any(_fits(name, entry) for entry in entries)}
    if len(frozen) == len(names):
        raise InvalidArgument(
            f"learner.freeze: {', '.join(entries)} cover every parameter of a {model}, so nothing is left to train; "
            "name fewer parameters"
        )
    for name, parameter in lm.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


def _fits(name: str, entry: str) -> bool:
    return fnmatchcase(name, entry) if "*" in entry else name.startswith(entry)


def _similar(entry: str, names: list[str]) -> list[str]:
    """Returns entries that fit parameters and have as many parts as the given entry. Only patterns may begin in the
    middle of a name."""
    is_pattern = "*" in entry
    given = entry.strip("*.")
    num_parts = given.count(".") + 1
    entries = {}
    for name in names:
        parts = (re.sub(r"\.\d+(?=\.)", ".*", name) if is_pattern else name).split(".")
        for start in range(len(parts) - num_parts + 1 if is_pattern else 1):
            end = start + num_parts
            before, after = "*." if start else "", ".*" if is_pattern and end < len(parts) else ""
            part = ".".join(parts[start:end])
            entries[part] = f"{before}{part}{after}"
    return [entries[part] for part in get_close_matches(given, entries)]


def _starts(names: list[str]) -> list[str]:
    """Returns the first two parts of each name, without repeats, as examples of prefixes."""
    return list(dict.fromkeys(".".join(name.split(".")[:2]) for name in names))[:_MAX_NAMES]
