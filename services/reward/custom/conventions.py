"""Calling conventions of custom verifiers, which adapt functions of other trainers."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from services.reward.common.json_text import whole
from services.reward.common.verdict import Broken
from services.reward.custom.code import Code, Unusable
from services.reward.custom.trl import of_trl

_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Parameters of verl's reward functions. All are passed by name."""


def adapted(function: Callable[..., Any], code: Code) -> Callable[..., Any]:
    """Returns a function of Shoal's arguments that calls `function` by the convention of its code.

    Raises `Unusable` if the function cannot be called by that convention.
    """
    arguments = json.loads(code.arguments)
    if code.convention == "verl":
        _check_takes(function, code, (*_VERL, *arguments))
        return _of_verl(partial(function, **arguments), code.score_key)
    if code.convention.startswith("trl"):
        return of_trl(partial(function, **arguments), code)
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

    `extra_info` equals that of verl's reward managers for one turn: the row's own, the number of turns, and no scores
    of a rollout.
    """

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
        return _awaited_score(result, key) if inspect.isawaitable(result) else _score(result, key)

    return verifier


async def _awaited_score(result: Awaitable[Any], key: str) -> Any:
    return _score(await result, key)


def _score(result: Any, key: str) -> Any:
    """Returns the number in a result of verl."""
    if isinstance(result, Mapping) and key not in result:
        raise Broken(f'it returned a table without "{key}"; the table has: {", ".join(map(str, result)) or "nothing"}')
    return result[key] if isinstance(result, Mapping) else result
