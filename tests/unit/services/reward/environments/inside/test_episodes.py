"""Turns as they reach an environment."""

from typing import Any

import pytest

from services.reward.environments.inside.episodes import turn_of
from services.reward.environments.wire import turn_from_wire
from shoal.v1 import environment_pb2, rollout_pb2


@pytest.mark.parametrize(
    ("opened", "text", "answer"),
    [
        ({"opened_thought": "<think>"}, "It is 7", ""),
        ({"opened_thought": "<think>"}, "It is 7</think>8", "8"),
        ({"opened_thought": "[THINK]"}, "It is 7", ""),
        ({}, "It is 7", "It is 7"),
        ({}, "It is 7</think>8", "8"),
    ],
)
def test_a_turn_that_begins_in_a_thought_answers_behind_its_end(opened: dict[str, Any], text: str, answer: str) -> None:
    message = rollout_pb2.ChatMessage(role="assistant", content=text)
    stop = rollout_pb2.FINISH_REASON_STOP
    turn = turn_of(
        turn_from_wire(environment_pb2.PolicyTurn(number=1, message=message, finish_reason=stop, **opened), 1)
    )
    assert (turn.text, turn.answer) == (text, answer)
