"""The environment `openenv` against a scripted server; tests/contract/environments/test_openenv.py has real ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.reward.environments.builtin.openenv import OpenEnv
from shoal.conversation import ChatMessage, ToolCallStatus
from shoal.environment import Broken, Observation, Turn
from tests.support.local_stack import free_port
from tests.support.waiting import eventually
from tests.unit.services.reward.environments.builtin.openenv_server import (
    OpenEnvServer,
    error,
    observation,
    openenv_server,
)
from tests.unit.services.reward.environments.builtin.turns import texts, turn

MCP_ACTION = {"properties": {"type": {"const": "call_tool"}, "tool_name": {}, "arguments": {}}, "required": []}


@pytest.fixture
async def server() -> AsyncIterator[OpenEnvServer]:
    async with openenv_server() as server:
        yield server


@asynccontextmanager
async def playing(server: OpenEnvServer, **settings: Any) -> AsyncIterator[OpenEnv]:
    environment = OpenEnv(base_url=server.address, **settings)
    try:
        yield environment
    finally:
        await environment.close()


def echoed(message: dict[str, Any]) -> dict[str, Any]:
    if message["type"] == "reset":
        return observation(0.0, heard="Ready.", length=0)
    said = message["data"]["message"]
    return observation(len(said) / 10, said == "bye", heard=said, length=len(said))


async def test_turns_of_text_are_actions_and_one_field_is_what_the_policy_reads(server: OpenEnvServer) -> None:
    server.answer = echoed
    async with playing(server, action="message", observation="heard") as environment:
        assert await environment.tools() == []
        assert await environment.reset({"level": 3}, 2**32 + 7) == Observation("Ready.")
        assert await environment.step(Turn(1, "hello")) == Observation("hello", 0.5, False)
        assert await environment.step(Turn(2, "bye")) == Observation("bye", 0.3, True)
        assert environment.metrics == {"steps": 2, "refused": 0}
    await eventually(lambda: not server.num_sessions)
    assert server.asked == [
        {"type": "reset", "data": {"seed": 7, "level": 3}},
        {"type": "step", "data": {"message": "hello"}},
        {"type": "step", "data": {"message": "bye"}},
    ]


async def test_an_action_of_several_fields_is_a_tool(server: OpenEnvServer) -> None:
    server.answer = echoed
    async with playing(server, tool="say") as environment:
        (tool,) = await environment.tools()
        assert (tool.name, tool.description, list(tool.parameters["properties"])) == (
            "say", "Says something.", ["message"],
        )  # fmt: skip
        beginning = await environment.reset({}, 0)
        assert json.loads(str(beginning.messages)) == {"heard": "Ready.", "length": 0}
        calls = turn(("say", {"message": "ab"}), ("say", {"message": "bye"}), ("say", {"message": "never said"}))
        answer = await environment.step(calls)
        assert texts(answer) == ['{"heard": "ab", "length": 2}', '{"heard": "bye", "length": 3}']
        assert answer.done and answer.reward == pytest.approx(0.5) and len(answer.tool_outcomes) == 2
        bad = await environment.step(turn(("say", {}), status=ToolCallStatus.MALFORMED))
        assert texts(bad) == ["error: It is bad."] and bad.reward is None
        assert await environment.step(Turn(3, "no call")) == Observation([])
    assert [message["data"].get("message") for message in server.asked] == [None, "ab", "bye"]


async def test_tools_of_the_environment_are_called_as_mcp_says(server: OpenEnvServer) -> None:
    def answer(message: dict[str, Any]) -> dict[str, Any]:
        match message["data"].get("type"), message["data"].get("tool_name"):
            case "list_tools", _:
                return observation(tools=[{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}])
            case "call_tool", "add":
                result = {"content": [{"type": "text", "text": "3"}], "structured_content": {"result": 3}}
                return observation(0.25, tool_name="add", result=result, error=None)
            case "call_tool", _:
                return observation(tool_name="x", error={"error_type": "tool_not_found", "message": "Unknown tool"})
        return observation()

    server.schemas["action"] = MCP_ACTION
    server.answer = answer
    async with playing(server) as environment:
        with pytest.raises(ValueError, match="set mcp = true"):
            await environment.tools()
    async with playing(server, mcp=True) as environment:
        (tool,) = await environment.tools()
        assert (tool.name, tool.description, tool.parameters) == ("add", "Adds.", {"type": "object"})
        assert (await environment.reset({}, 0)).messages == ()
        told = await environment.step(turn(("add", {"a": 1, "b": 2}), ("nix", {})))
        assert texts(told) == ["3", "error: Unknown tool"] and told.reward == 0.25
        assert [outcome.ok for outcome in told.tool_outcomes] == [True, False]
    assert server.asked[-2]["data"] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"action": "words"}, "action: .*'words'.* metadata, message"),
        ({"observation": "seen"}, "observation: .*'seen'"),
        ({"action": "message"}, "an action .*'other'"),
    ],
)
async def test_settings_that_the_servers_schemas_contradict_are_refused(
    server: OpenEnvServer, settings: dict[str, Any], problem: str
) -> None:
    if problem.startswith("an action"):
        server.schemas["action"] = {"properties": {"message": {}, "other": {}}, "required": ["message", "other"]}
    async with playing(server, **settings) as environment:
        with pytest.raises(ValueError, match=problem):
            await environment.tools()


async def test_what_does_not_fit_is_told_to_the_policy_and_what_fails_is_told_if_the_settings_say_so(
    server: OpenEnvServer,
) -> None:
    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "reset":
            return observation()
        if message["data"]["message"] == "long":
            errors = [{"loc": ["message"], "msg": "String should have at most 3 characters"}]
            return error("VALIDATION_ERROR", "Invalid message", errors=errors)
        return error("EXECUTION_ERROR", "division by zero")

    server.answer = answer
    async with playing(server, action="message") as environment:
        await environment.reset({}, 0)
        told = await environment.step(Turn(1, "long"))
        assert told == Observation("error: message: String should have at most 3 characters")
        with pytest.raises(Broken, match="division by zero"):
            await environment.step(Turn(2, "x"))
    async with playing(server, action="message", tells_errors=True) as environment:
        await environment.reset({}, 0)
        assert await environment.step(Turn(1, "x")) == Observation("error: division by zero")
        assert environment.metrics == {"steps": 1, "refused": 1}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, r"'reset' .*settings.timeout_s \(0.5 s\)"),
        ("close", "'reset': ConnectionClosed"),
        ("no JSON", "'reset': JSONDecodeError"),
        ("[" * 200_000, "'reset': RecursionError"),
        ("x" * (5 << 20), "'reset': ConnectionClosedError.*1009"),
        ([1, 2], "no observation"),
        ({"type": "observation", "data": 3}, "no observation"),
        ({"type": "state", "data": {}}, "no observation"),
        ({"type": "observation", "data": {"done": False}}, "no observation"),
        (error("FACTORY_ERROR", "No GPU."), "'reset' .*FACTORY_ERROR: No GPU."),
        (error("EXECUTION_ERROR", "No level 9."), "'reset': No level 9."),
    ],
)
async def test_a_server_that_gives_no_observation_fails_the_episode(
    server: OpenEnvServer, answer: Any, problem: str
) -> None:
    server.answer = lambda message: answer
    timeout_s = 0.5 if answer is None else 30.0
    async with playing(server, action="message", timeout_s=timeout_s) as environment:
        with pytest.raises(Broken, match=problem):
            await environment.reset({}, 0)


@pytest.mark.parametrize("reward", ["much", True, False, [1]])
async def test_a_reward_that_is_no_number_fails_the_episode(server: OpenEnvServer, reward: Any) -> None:
    server.answer = lambda message: observation(reward if message["type"] == "step" else None)
    async with playing(server, action="message") as environment:
        await environment.reset({}, 0)
        with pytest.raises(Broken, match="reward"):
            await environment.step(Turn(1, "x"))


async def test_an_episode_waits_for_a_place_and_fails_without_one(server: OpenEnvServer) -> None:
    server.num_places = 1
    async with playing(server, action="message") as second:
        async with playing(server, action="message") as first:
            await first.reset({}, 0)
            waiting = asyncio.create_task(second.reset({}, 0))
            await eventually(lambda: server.num_refused >= 2)
            async with playing(server, action="message", wait_s=0.3) as third:
                with pytest.raises(Broken, match=r"settings.wait_s \(0.3 s\).*max_concurrent_envs"):
                    await third.reset({}, 0)
        assert await waiting == Observation(())


async def test_a_server_that_is_not_there_is_named_and_no_other_setting_is_blamed() -> None:
    environment = OpenEnv(base_url=f"http://127.0.0.1:{free_port()}", timeout_s=0.5)
    with pytest.raises(Broken, match=r"127\.0\.0\.1:\d+/schema cannot be reached"):
        await environment.tools()
    with pytest.raises(Broken, match=r"127\.0\.0\.1:\d+/ws .*'reset': ConnectionRefusedError"):
        await environment.reset({}, 0)
    await environment.close()


async def test_the_key_goes_along_and_an_answer_that_is_no_text_is_a_message(
    server: OpenEnvServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_KEY", "k-1")
    server.answer = lambda message: observation(0, heard={"a": "é"})
    async with playing(server, api_key_env="OPENENV_KEY", is_deterministic=True) as environment:
        assert environment.is_deterministic
        await environment.tools()
        assert (await environment.reset({}, 0)).messages == '{"a": "é"}'
        answer = await environment.step(turn(("act", {"message": "x"})))
        assert answer.messages == [ChatMessage("tool", '{"a": "é"}', tool_call_id="call-1-1", name="act")]
    assert server.keys == ["Bearer k-1", "Bearer k-1"]
