"""Freezing a part of a language model: its parameters get no gradient and no optimizer state."""

from typing import Any

from shoal.errors import InvalidArgument

_MAX_NAMES = 8


def freeze(lm: Any, prefixes: list[str]) -> None:
    """Freezes the parameters whose names begin with one of the prefixes; they may be sharded.

    Raises `InvalidArgument` if no name begins with a prefix, and if nothing is left to train.
    """
    names = [name for name, _ in lm.named_parameters()]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise InvalidArgument(
                f'learner.freeze: no parameter of a {type(lm).__name__} has a name that begins with "{prefix}"; names '
                f"begin with {', '.join(_starts(names))} (a tied parameter has only the first of its names)"
            )
    frozen = {name for name in names if name.startswith(tuple(prefixes))}
    if len(frozen) == len(names):
        raise InvalidArgument(
            f"learner.freeze: {', '.join(prefixes)} cover every parameter of a {type(lm).__name__}, so nothing is "
            "left to train; name fewer prefixes"
        )
    for name, parameter in lm.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


def _starts(names: list[str]) -> list[str]:
    """Returns the first two parts of the names, each once, as examples of prefixes."""
    return list(dict.fromkeys(".".join(name.split(".")[:2]) for name in names))[:_MAX_NAMES]
