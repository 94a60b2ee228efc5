"""TRL's reward functions, called for one completion."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from services.reward.common.json_text import whole
from services.reward.common.verdict import Broken
from services.reward.custom.code import Code, Unusable

_TRL = ("prompts", "completions", "completion_ids", "log_metric", "log_extra")
"""Parameters that TRL passes to reward functions in addition to the columns of the data, and that exist here."""
_OF_TRAINER = ("trainer_state", "environments")
"""Other parameters that TRL passes: objects of its trainer."""


def of_trl(function: Callable[..., Any], code: Code) -> Callable[..., Any]:
    """Returns a verifier that calls a reward function of TRL's GRPOTrainer with lists of one completion.

    In the convention "trl" prompts and completions are lists of messages, as for conversational data; in "trl_text"
    they are texts. Raises `Unusable` for a function that needs an object of TRL's trainer.
    """
    required, optional, takes = _parameters_of_trl(function, code)
    needed = [name for name in required if name not in _TRL]

    def verifier(completion: str, label: Any, prompt: str, messages: list[Any], token_ids: list[int]) -> Any:
        is_text = code.convention == "trl_text"
        given: dict[str, Any] = {
            **{
                name: column
                for name, column in _columns(label, needed).items()
                if column != [None] or name not in optional
            },
            "prompts": [prompt if is_text else messages or [{"role": "user", "content": prompt}]],
            "completions": [completion if is_text else [{"role": "assistant", "content": completion}]],
            "completion_ids": [token_ids],
            "log_metric": _log,
            "log_extra": _log,
        }
        if lacking := [name for name in needed if name not in given]:
            has = ", ".join(map(str, label)) if isinstance(label, Mapping) else "no columns"
            columns = ", ".join(f'{name} = "COLUMN"' for name in needed)
            raise Broken(
                f"{code.function} needs {', '.join(lacking)}, and the label has {has}: give the source label_columns = "
                f"{{ {columns} }}"
            )
        result = function(**{name: value for name, value in given.items() if takes is None or name in takes})
        return _awaited_only(result, code.function) if inspect.isawaitable(result) else _only(result, code.function)

    return verifier


def _parameters_of_trl(function: Callable[..., Any], code: Code) -> tuple[list[str], list[str], Collection[str] | None]:
    """Returns the parameters without and with a default, and all possible parameters (None if any name is possible).
    Raises `Unusable`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise Unusable("function", f"the parameters of {code.function} cannot be read: {error}") from None
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    required = [each.name for each in named if each.default is each.empty]
    if unfit := [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]:
        raise Unusable("function", f"{code.function} takes {unfit[0]!r} only by position; it must take it by name")
    takes = None if any(each.kind is each.VAR_KEYWORD for each in parameters) else [each.name for each in named]
    if takes is not None and "completions" not in takes:
        raise Unusable("function", f"{code.function} takes no 'completions', so it could not judge the completion")
    if theirs := [name for name in required if name in _OF_TRAINER]:
        raise Unusable(
            "function",
            f"{code.function} needs {theirs[0]!r}, which only TRL's trainer has: give the parameter a default, or "
            "write the function without it",
        )
    return required, [each.name for each in named if each.default is not each.empty], takes


def _columns(label: Any, needed: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the columns of a label, each a list of one value. A label that is not a table is the only column that the
    function needs."""
    if isinstance(label, Mapping):
        return {str(name): [value] for name, value in whole(label).items()}
    return {needed[0]: [whole(label)]} if len(needed) == 1 else {}


def _log(name: str, value: Any) -> None:
    """Prints a metric or column of the function, so that it appears in the service's log."""
    print(f"{name} = {value}")


async def _awaited_only(result: Awaitable[Any], function: str) -> Any:
    return _only(await result, function)


def _only(result: Any, function: str) -> Any:
    """Returns the reward of the completion in a result of TRL."""
    try:
        rewards = None if isinstance(result, str | bytes | Mapping) else list(result)
    except TypeError:  # It is not a list.
        rewards = None
    if rewards is None or len(rewards) != 1:
        what = f"{type(result).__name__}" if rewards is None else f"{len(rewards)} rewards"
        raise Broken(f"{function} returned {what} for a list of one completion: a list with one reward is expected")
    return rewards[0]
