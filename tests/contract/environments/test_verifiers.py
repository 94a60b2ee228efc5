"""Contract tests with a task set of verifiers v1 and the real package, in a Python of its own.

SHOAL_TEST_PYTHON_VERIFIERS names a Python that has the package.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shoal.conversation import ChatMessage
from shoal.errors import InvalidArgument
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire.conversations import chat_message_to_wire
from tests.support.environment_client import Stage, staged, start
from tests.support.real_environments import TASKSET_SETTINGS, python_with_taskset
from tests.support.reward_client import TIMEOUT_S

Says = Callable[[pb.PolicyCall], str]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python = python_with_taskset(tmp_path_factory.mktemp("verifiers"))
    return {"name": "sums", "source": "verifiers", "interpreter": python, "settings": TASKSET_SETTINGS}


async def played(stage: Stage, task: dict[str, Any], says: Says) -> tuple[pb.EpisodeResult, list[pb.PolicyCall]]:
    """Plays an episode, in which the policy says what it is told to; returns the result and the policy's calls."""
    requests: asyncio.Queue[pb.RunEpisodeRequest] = asyncio.Queue()
    requests.put_nowait(pb.RunEpisodeRequest(start=start("sums", task, max_context_tokens=512, seed=3)))

    async def stream() -> AsyncIterator[pb.RunEpisodeRequest]:
        while True:
            yield await requests.get()

    calls = []
    async for response in stage.stub.RunEpisode(stream(), timeout=TIMEOUT_S):
        if response.WhichOneof("part") == "result":
            return response.result, calls
        if response.WhichOneof("part") == "call":
            calls.append(response.call)
            reply = pb.PolicyReply(call_id=response.call.call_id)
            text = says(response.call)
            reply.answer.message.CopyFrom(chat_message_to_wire(ChatMessage("assistant", text)))
            reply.answer.finish_reason = rollout_pb2.FINISH_REASON_STOP
            requests.put_nowait(pb.RunEpisodeRequest(reply=reply))
    raise AssertionError("the stream ended without a result")


async def test_the_agent_of_a_task_set_calls_the_policy_and_is_paid_by_its_tasks(
    table: dict[str, Any],
) -> None:
    def says(call: pb.PolicyCall) -> str:
        if len(call.messages) == 1:
            return "Let me think."
        a, b = (int(word) for word in call.messages[0].content.rstrip("?").split() if word.isdigit())
        return f"{a + b}."

    async with staged() as stage:
        await stage.configure(table)
        info = (await stage.listed())["sums"]
        assert info.is_agent and not info.is_deterministic and not info.unavailable
        result, calls = await played(stage, {"index": 5}, says)
        assert [[message.role for message in call.messages] for call in calls] == [
            ["user"],
            ["user", "assistant", "user"],
        ]
        assert result.outcome == rollout_pb2.SCORE_OUTCOME_SCORED, result.detail
        metrics = dict(result.metrics)
        assert metrics["num_turns"] == 2 and metrics["right"] == 1 and metrics["length"] in (2, 3)
        assert result.reward == pytest.approx(1 + 0.5 * metrics["digits"])
        again, [first] = await played(stage, {"index": 5}, lambda call: "No: 99.")
        assert first.messages[0].content == calls[0].messages[0].content
        assert again.metrics["right"] == 0 and 0 < again.reward < 0.5
        other, [drawn] = await played(stage, {}, lambda call: "0")
        assert other.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and drawn.messages[0].content.startswith("What is")
        with pytest.raises(InvalidArgument, match=r"100 tasks.* 100"):
            await played(stage, {"index": 100}, says)


async def test_settings_that_verifiers_does_not_take_are_refused_before_anything_is_played(
    table: dict[str, Any],
) -> None:
    async with staged() as stage:
        for settings, problem in (
            ({"taskset": {"id": "no_such_set"}}, "taskset 'no_such_set' not found"),
            ({**TASKSET_SETTINGS, "agnt": {}}, "agnt"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                await stage.configure({**table, "settings": settings})
