"""Turns as they reach an environment, and the threads of agents."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.reward.environments.inside.episodes import in_thread, turn_of
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


class Stop(BaseException):
    pass


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (ValueError("no"), ValueError, "no"),
        (SystemExit(2), RuntimeError, r"it called exit\(2\)"),
        (StopIteration(7), RuntimeError, r"it raised StopIteration\(7\)"),
        (KeyboardInterrupt(), KeyboardInterrupt, ".*"),
        (asyncio.CancelledError("by itself"), asyncio.CancelledError, "by itself"),
        (Stop("that was all"), Stop, "that was all"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_work_raises_reaches_who_waits_for_it(
    error: BaseException, raised: type[BaseException], says: str
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(raised, match=says):
            await in_thread(raising(error))


async def test_what_work_returns_reaches_who_waits_for_it() -> None:
    assert await in_thread(lambda: 3) == 3
