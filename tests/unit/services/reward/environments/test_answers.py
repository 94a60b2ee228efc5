from typing import Any

import numpy as np
import pytest

from services.reward.environments.inside.answers import BadAnswer, observation_of, result_of
from shoal.conversation import ChatMessage
from shoal.environment import Agent, Environment, Observation
from shoal.rollout import ToolOutcome


def contents(value: Any, max_chars: int = 1000) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in observation_of(value, max_chars)["messages"]]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (None, []),
        ("a", [("user", "a")]),
        (ChatMessage("tool", "a"), [("tool", "a")]),
        ({"role": "system", "content": "a"}, [("system", "a")]),
        (["a", {"role": "tool", "content": "b"}], [("user", "a"), ("tool", "b")]),
        (Observation("a", reward=1.0), [("user", "a")]),
    ],
)
def test_what_a_method_returns_is_messages(value: Any, messages: list[tuple[str, str]]) -> None:
    assert contents(value) == messages


@pytest.mark.parametrize(
    "value",
    [
        7,
        object(),
        {"role": "user"},
        {"content": "a"},
        [3],
        Observation("a", reward=float("nan")),
        Observation("a", reward="much"),  # type: ignore[arg-type]
        Observation("a", reward=10**400),
        Observation("a", reward=1e300),
        Observation("a", reward=np.zeros(2)),  # type: ignore[arg-type]
        Observation("a", done="false"),  # type: ignore[arg-type]
        Observation("a", tool_outcomes=5),  # type: ignore[arg-type]
        Observation("a", tool_outcomes=({"name": "add"},)),  # type: ignore[arg-type]
        Observation("a", tool_outcomes=(ToolOutcome("add", True, False, float("nan")),)),
        b"a",
        ("a", 1.0, True, {}),
        ["a"] * 1000,
    ],
)
def test_what_is_no_answer_is_refused(value: Any) -> None:
    with pytest.raises(BadAnswer):
        observation_of(value, 1000)


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert observation_of(Observation(reward=np.float32(0.5)), 10)["reward"] == 0.5  # type: ignore[arg-type]
    assert observation_of(Observation(reward=True), 10)["reward"] == 1.0


def test_short_messages_keep_their_length_where_long_ones_are_cut() -> None:
    short, long = (content for _, content in contents(["b" * 10, "a" * 500], max_chars=100))
    assert short == "b" * 10
    assert long.startswith(f"{'a' * 45}\n[410 ") and long.endswith(f"]\n{'a' * 45}"), long


def test_a_lone_surrogate_does_not_reach_the_wire() -> None:
    assert contents("a\ud800") == [("user", "a?")]


def test_a_result_is_numbers_and_a_short_text() -> None:
    environment = Environment()
    environment.metrics["right"] = True
    environment.detail = "x" * 1000
    assert result_of(environment) == {"reward": None, "metrics": {"right": 1.0}, "detail": "x" * 500}
    environment.metrics["right"] = float("inf")
    with pytest.raises(BadAnswer, match="'right'"):
        result_of(environment)


@pytest.mark.parametrize("metrics", [None, [1, 2], "right", 5])
def test_metrics_that_are_no_dict_are_refused_by_name(metrics: Any) -> None:
    environment = Environment()
    environment.metrics = metrics
    with pytest.raises(BadAnswer, match=r"self\.metrics "):
        result_of(environment)


def test_a_detail_of_none_says_nothing() -> None:
    environment = Environment()
    environment.detail = None  # type: ignore[assignment]
    assert result_of(environment)["detail"] == ""


def test_rewards_of_turns_are_an_agents_and_named_by_their_calls() -> None:
    agent = Agent()
    agent.turn_rewards |= {"chatcmpl-c1": 0.5, "c2": True}
    assert result_of(agent)["turn_rewards"] == {"c1": 0.5, "c2": 1.0} and Agent().turn_rewards == {}
    agent.turn_rewards["c3"] = float("nan")
    with pytest.raises(BadAnswer, match="'c3'"):
        result_of(agent)
