"""Adapts reward functions that are written for other trainers."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from services.reward.common.json_text import whole
from services.reward.common.verdict import Broken
from services.reward.custom.code import Code, Unusable

_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Parameters of verl's reward functions. All are passed by name."""
_TRL = ("prompts", "completions", "completion_ids", "log_metric", "log_extra")
"""Parameters that TRL passes to reward functions, besides the columns of the data, and that exist here."""
_OF_TRAINER = ("trainer_state", "environments")
"""Other parameters that TRL passes: objects of its trainer."""


def adapted(function: Callable[..., Any], code: Code) -> Callable[..., Any]:
    """Returns a function of Shoal's arguments that calls `function` by the convention of its code. Raises `Unusable` if
    the function cannot be called in this way."""
    arguments = json.loads(code.arguments)
    if code.convention == "verl":
        _check_takes(function, code, (*_VERL, *arguments))
        return _of_verl(partial(function, **arguments), code.score_key)
    if code.convention.startswith("trl"):
        return _of_trl(partial(function, **arguments), code)
    if arguments:
        _check_takes(partial(function), code, arguments, partly=True)
        return partial(function, **arguments)
    return function


def _check_takes(function: Callable[..., Any], code: Code, names: Any, *, partly: bool = False) -> None:
    """Raises `Unusable` if a function cannot be called with these arguments, or, if `partly`, with these and others."""
    try:
        signature = inspect.signature(function)
        (signature.bind_partial if partly else signature.bind)(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        convention = f' in the convention "{code.convention}"' if code.convention != "shoal" else ""
        given = ", ".join(names)
        raise Unusable("function", f"{code.function} cannot be called with {given}{convention}: {error}") from None


def _of_verl(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    """Returns a verifier that calls a reward function of verl; `key` is the score's entry in a result's table.
    `extra_info` is the row's own, with what verl's reward managers add for one turn."""

    def verifier(completion: str, label: Any) -> Any:
        if not isinstance(label, Mapping) or "ground_truth" not in label:
            raise Broken(
                'the label is not a table with "ground_truth": give the source label_columns = { data_source = '
                '"data_source", ground_truth = "reward_model.ground_truth", extra_info = "extra_info" }'
            )
        row = whole(label)
        result = function(
            data_source=row.get("data_source"),
            solution_str=completion,
            ground_truth=row["ground_truth"],
            extra_info={**(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}},
        )
        return _after(result, lambda value: _score(value, key))

    return verifier


def _after(result: Any, read: Callable[[Any], Any]) -> Any:
    """Reads the result of a function, or returns an awaitable that does so if the function is `async`."""

    async def awaited() -> Any:
        return read(await result)

    return awaited() if inspect.isawaitable(result) else read(result)


def _score(result: Any, key: str) -> Any:
    """Returns the number in a result of verl."""
    if isinstance(result, Mapping) and key not in result:
        raise Broken(f'the returned table lacks "{key}" (score_key); it has {", ".join(map(str, result)) or "nothing"}')
    return result[key] if isinstance(result, Mapping) else result


def _of_trl(function: Callable[..., Any], code: Code) -> Callable[..., Any]:
    """Returns a verifier that calls a reward function of TRL's GRPOTrainer with lists of one completion.

    In the convention "trl" prompts and completions are lists of messages, in "trl_text" texts. Raises `Unusable` for a
    function that needs an object of TRL's trainer.
    """
    required, optional, takes = _parameters_of_trl(function, code)
    needed = [name for name in required if name not in _TRL]

    def verifier(completion: str, label: Any, prompt: str, messages: list[Any], token_ids: list[int]) -> Any:
        is_text = code.convention == "trl_text"
        columns = _columns(label, needed).items()
        given: dict[str, Any] = {
            **{name: column for name, column in columns if column != [None] or name not in optional},
            "prompts": [prompt if is_text else messages or [{"role": "user", "content": prompt}]],
            "completions": [completion if is_text else [{"role": "assistant", "content": completion}]],
            "completion_ids": [token_ids],
            "log_metric": _log,
            "log_extra": _log,
        }
        if lacking := [name for name in needed if name not in given]:
            has = ", ".join(map(str, label)) if isinstance(label, Mapping) else "no columns"
            cure = ", ".join(f'{name} = "COLUMN"' for name in needed)
            raise Broken(
                f"{code.function} needs {', '.join(lacking)}, and the label has {has}: give the source label_columns = "
                f"{{ {cure} }}"
            )
        result = function(**{name: value for name, value in given.items() if takes is None or name in takes})
        return _after(result, lambda value: _only(value, code.function))

    return verifier


def _parameters_of_trl(function: Callable[..., Any], code: Code) -> tuple[list[str], list[str], Collection[str] | None]:
    """Returns the parameters without a default, those with a default, and all accepted names (None if every name is
    accepted). Raises `Unusable`."""
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
    """Returns the columns of a label, each a list of one value. A label that is no table is the one needed column."""
    if isinstance(label, Mapping):
        return {str(name): [value] for name, value in whole(label).items()}
    return {needed[0]: [whole(label)]} if len(needed) == 1 else {}


def _log(name: str, value: Any) -> None:
    """Prints a metric or column of the function, so that it appears in the service's log."""
    print(f"{name} = {value}")


def _only(result: Any, function: str) -> Any:
    """Returns the reward of the completion in a result of TRL."""
    try:
        rewards = None if isinstance(result, str | bytes | Mapping) else list(result)
    except TypeError:  # It is not a list.
        rewards = None
    if rewards is None or len(rewards) != 1:
        what = type(result).__name__ if rewards is None else f"{len(rewards)} rewards"
        raise Broken(f"{function} returned {what} for a list of one completion: a list with one reward is expected")
    return rewards[0]
