"""Names in the class of an environment that nothing calls."""

import re
import types
from collections.abc import Callable
from typing import Any

import pytest

from services.reward.environments.inside.loading import CannotLoad, LoadedEnvironment, misnamed
from shoal.environment import Agent, Environment, Observation, tool

Body = dict[str, Any]


def step(self: Any, turn: Any) -> Observation:
    return Observation(done=True)


def add(a: int, b: int) -> int:
    return a + b


def takes(count: int) -> Callable[..., None]:
    return [
        lambda self: None,
        lambda self, turn: None,
        lambda self, task, seed: None,
        lambda self, task, seed, policy: None,
    ][count]


def made(body: Body, base: type[Environment] = Environment) -> Environment:
    return type("Made", (base,), body)()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"stepp": takes(1), "tools": [add]}, {"stepp": "step"}),
        ({"setp": takes(1)}, {"setp": "step"}),
        ({"rest": takes(2), "step": step}, {"rest": "reset"}),
        ({"clos": takes(0), "step": step}, {"clos": "close"}),
        ({"is_determinstic": True, "step": step}, {"is_determinstic": "is_deterministic"}),
        ({"tool": [add], "step": step}, {"tool": "tools"}),
        ({"runn": takes(3), "step": step}, {}),
        ({"rest": takes(0), "step": step}, {}),
        ({"steps": 3, "tools": [add]}, {}),
        ({"steps": takes(1), "step": step}, {}),
        ({"_step": takes(1), "tools": [add]}, {}),
        ({"stepp": tool(lambda self, turn: 1)}, {}),
        ({"guess": takes(1), "step": step}, {}),
    ],
)
def test_a_name_that_is_almost_a_methods_is_found_where_the_method_is_missing(body: Body, found: Any) -> None:
    for name, value in body.items():
        if isinstance(value, types.FunctionType):
            value.__name__ = name
    assert misnamed(made(body)) == found


def test_a_misspelled_name_of_a_base_class_is_found() -> None:
    assert misnamed(made({}, type("Base", (Environment,), {"stepp": takes(1)}))) == {"stepp": "step"}


def test_a_misspelled_method_of_an_agent_is_found() -> None:
    assert misnamed(made({"runs": takes(3)}, Agent)) == {"runs": "run"}


@pytest.mark.parametrize(
    ("base", "body", "why"),
    [
        (Environment, {"stepp": takes(1)}, "no method 'step' and no tools.*; rename 'stepp' to 'step'"),
        (Environment, {"tool": [add]}, "no method 'step' and no tools.*; rename 'tool' to 'tools'"),
        (Environment, {"reset": takes(2)}, "no method 'step' and no tools: nothing would answer the policy$"),
        (Agent, {"runn": takes(3)}, "no method 'run'; rename 'runn' to 'run'"),
        (Agent, {"tools": [add]}, "no method 'run'$"),
    ],
)
async def test_an_environment_that_answers_nothing_is_refused(base: Any, body: Body, why: str) -> None:
    with pytest.raises(CannotLoad) as refused:
        await described(type("Made", (base,), body))
    assert re.search(why, str(refused.value)), refused.value


@pytest.mark.parametrize(
    ("base", "body"),
    [
        (Environment, {"step": step}),
        (Environment, {"tools": [add]}),
        (Environment, {"tools": lambda self: [add]}),
        (Environment, {"unavailable": lambda self: "no display"}),
        (Agent, {"run": takes(3)}),
    ],
)
async def test_an_environment_that_answers_or_says_why_it_cannot_is_described(base: Any, body: Body) -> None:
    assert (await described(type("Made", (base,), body)))["misnamed"] == {}


async def described(found: type[Environment]) -> dict[str, Any]:
    module = types.ModuleType("games")
    module.Made = found  # type: ignore[attr-defined]
    code = {"path": "", "module": "games", "object": "Made", "settings": {}, "digest": "d"}
    return await LoadedEnvironment(code, found, module).describe()
