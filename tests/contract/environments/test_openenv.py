"""Contract tests with an OpenEnv server that OpenEnv's own command line makes, and nothing changes.

SHOAL_TEST_PYTHON_OPENENV names a Python that has the package.
"""

import asyncio
from collections.abc import Iterator

import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.v1 import rollout_pb2
from tests.support.environment_client import staged
from tests.support.real_environments import openenv_echo


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with openenv_echo(tmp_path_factory.mktemp("openenv")) as address:
        yield address


async def test_an_unmodified_server_is_played_in_texts_and_in_tool_calls(address: str) -> None:
    async with staged() as stage:
        texts = {"base_url": address, "action": "message", "observation": "echoed_message"}
        await stage.configure({"name": "echo", "source": "openenv", "settings": texts})
        episode = stage.play("echo")
        assert [message.content for message in (await episode.observe()).messages] == ["Echo environment ready!"]
        answer = await episode.say("Hello")
        assert [message.content for message in answer.messages] == ["Hello"]
        assert answer.reward == pytest.approx(0.5) and not answer.done
        result = await episode.finish()
        assert result.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and dict(result.metrics) == {"steps": 1, "refused": 0}

        await stage.configure({"name": "echo", "source": "openenv", "settings": {"base_url": address, "tool": "echo"}})
        (tool,) = (await stage.listed())["echo"].tools
        assert tool.name == "echo" and "message" in tool.parameters.fields["properties"].struct_value
        # The server has one place: the first episode's has to be free.
        episode = await stage.begin("echo")
        call = ToolCall("call-1-1", "echo", '{"message": "Hi"}', ToolCallStatus.OK, "raw")
        answer = await episode.say(ChatMessage("assistant", "", (call,)))
        assert '"echoed_message": "Hi"' in answer.messages[0].content and answer.reward == pytest.approx(0.2)
        waiting = stage.play("echo")
        began = asyncio.create_task(waiting.observe())
        await episode.finish()
        assert (await began).messages, "an episode waits for the place of another one"
