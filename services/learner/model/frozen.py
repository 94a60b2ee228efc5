"""Freezing a part of a language model: its parameters get no gradient and no optimizer state."""

from typing import Any

from shoal.errors import InvalidArgument

_MAX_NAMES = 8


def freeze(lm: Any, prefixes: list[str]) -> None:
    """Freezes the parameters whose names begin with one of the prefixes; they may be sharded.

    Raises `InvalidArgument` for a prefix that no name begins with, and if nothing is left to train.
    """
    names = [name for name, _ in lm.named_parameters()]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise InvalidArgument(
                f'learner.freeze: no parameter of a {type(lm).__name__} has a name that begins with "{prefix}"; there '
                f"are {', '.join(_starts(names))} (a tied parameter has the first of its names alone)"
            )
    frozen = {name for name in names if name.startswith(tuple(prefixes))}
    if len(frozen) == len(names):
        raise InvalidArgument(
            f"learner.freeze: {', '.join(prefixes)} cover every parameter of a {type(lm).__name__}, which leaves "
            "nothing to train; name fewer"
        )
    for name, parameter in lm.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


def _starts(names: list[str]) -> list[str]:
    """Returns the first two parts of the names, each once, as examples of prefixes."""
    return list(dict.fromkeys(".".join(name.split(".")[:2]) for name in names))[:_MAX_NAMES]
