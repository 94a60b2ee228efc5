"""What all environments that come with Shoal have in common: their names, and the refusal of settings and tasks."""

import importlib
from typing import Any

import pytest

from services.reward.environments.builtin.registry import CLASSES
from shoal.config.tables.environments import BUILT_IN_ENVIRONMENTS
from shoal.environment import InvalidTask
from shoal.errors import InvalidArgument


def made(name: str, settings: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"services.reward.environments.builtin.{name}"), CLASSES[name])(**settings)


def test_the_configuration_names_what_comes_with_shoal() -> None:
    assert set(CLASSES) == BUILT_IN_ENVIRONMENTS


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("guess_number", {"max_guesses": 0}, "max_guesses"),
        ("guess_number", {"partial_credit": 1}, "partial_credit"),
        ("mcp", {}, "give either command"),
        ("mcp", {"command": ["x"], "url": "http://x"}, "give either command"),
        ("mcp", {"url": "x"}, "must begin with http"),
        ("mcp", {"url": "http://x", "api_key_env": "NO_SUCH_KEY"}, "has no NO_SUCH_KEY"),
        ("openenv", {}, "give base_url"),
        ("openenv", {"base_url": "10.0.0.8:8000"}, "must begin with http"),
        ("openenv", {"base_url": "http://h", "action": "a", "mcp": True}, "not both"),
        ("openenv", {"base_url": "http://h", "wait_s": 0}, "wait_s must be above 0"),
        ("openenv", {"base_url": "http://h", "api_key_env": "NO_SUCH_KEY"}, "has no NO_SUCH_KEY"),
        ("reasoning_gym", {"max_tries": 0}, "max_tries"),
        ("reasoning_gym", {"discount": 1.5}, "max_tries"),
        ("reasoning_gym", {"threshold": 0.0}, "max_tries"),
        ("sandbox", {"timeout_s": 0}, "must be"),
        ("sandbox", {"memory_mib": 1}, "must be"),
        ("sandbox", {"disk_mib": 0}, "must be"),
        ("sandbox", {"output_limit_kib": 0}, "must be"),
        ("search", {}, "give base_url"),
        ("search", {"base_url": "http://x", "service": "bing"}, "service "),
        ("search", {"base_url": "http://x", "num_results": 0}, "must be at least 1"),
        ("search", {"base_url": "http://u:p@x"}, "user name or password"),
        ("search", {"base_url": "http://x", "unknown": 1}, "unknown"),
        ("search", {"base_url": "http://x", "api_key_env": "NO_SUCH_KEY"}, "has no NO_SUCH_KEY"),
        ("textarena", {"num_players": 0}, "num_players"),
        ("textarena", {"num_players": 2}, "num_players"),
        ("textarena", {"opponent_says": ["x"]}, "num_players"),
        ("textarena", {"num_players": 2, "opponent_says": ["x"], "opponent_pattern": "x"}, "num_players"),
        ("toolbox", {}, "at least one table"),
        ("toolbox", {"tools": [{}]}, "browse, calculator, counter, "),
        ("toolbox", {"tools": [{"source": "toolbox"}]}, "browse, calculator, counter, "),
        ("toolbox", {"tools": [{"source": "os"}]}, "browse, calculator, counter, "),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, InvalidArgument), match=problem):
        made(name, settings)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("calculator", {"a": 1}),
        ("calculator", {"a": 1, "b": "2"}),
        ("counter", {"target": "x"}),
        ("counter", {"goal": 1}),
        ("guess_number", {"number": 101}),
        ("guess_number", {"number": True}),
        ("reasoning_gym", {}),
        ("reasoning_gym", {"task": "a", "options": "{}"}),
        ("reasoning_gym", {"task": "a", "options": {}, "entry": "{}"}),
        ("wordle", {"word": "abc"}),
        ("wordle", {"word": 7}),
    ],
)
def test_a_task_that_is_none_is_refused(name: str, task: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="`task`" if name == "reasoning_gym" else "give "):
        made(name, {}).reset(task, 0)
