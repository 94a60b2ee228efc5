"""The environment `mcp` against servers made with the official package, and the form in which it offers their tools."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from services.reward.environments.builtin.mcp import Mcp, offered_tools
from shoal.conversation import ToolCallStatus, ToolDefinition
from shoal.environment import Broken
from tests.support.local_stack import free_port
from tests.support.waiting import eventually
from tests.unit.services.reward.environments.builtin.turns import texts, turn

PROGRAM = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
NAMES = ["add", "fail", "count", "variable", "wait", "die"]


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[Mcp]:
    environment = Mcp(**{"timeout_s": 60.0, **({} if "url" in settings else {"command": PROGRAM}), **settings})
    await environment.reset({}, 0)
    try:
        yield environment
    finally:
        await environment.close()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, str(port), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )

    async def answers() -> bool:
        async with httpx2.AsyncClient(trust_env=False) as client:
            try:
                await client.get(f"http://127.0.0.1:{port}/mcp")
            except httpx2.TransportError:
                return False
        return True

    try:
        await eventually(answers)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with contextlib.suppress(ProcessLookupError):  # A tool ends the server.
            process.kill()
        await process.wait()


def servers_of(pid: int) -> list[psutil.Process]:
    alive = [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if PROGRAM[1] in child.cmdline()]


async def test_a_program_offers_its_tools_answers_in_order_and_tells_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setenv("SECRET", "no")
    async with connected(variables=["GIVEN"]) as environment:
        tools = {tool.name: tool for tool in await environment.tools()}
        assert list(tools) == NAMES
        assert tools["add"].description == "Adds two numbers."
        assert tools["add"].parameters["required"] == ["a", "b"]
        observation = await environment.step(
            turn(
                ("add", {"a": 1, "b": 2}), ("fail", {"why": "x"}), ("add", {"a": "x", "b": 2}), ("nix", {}),
                ("variable", {"name": "GIVEN"}), ("variable", {"name": "SECRET"}),
            )
        )  # fmt: skip
        answers = texts(observation)
        assert (answers[0], answers[4], answers[5]) == ("3", "yes", "unset"), answers
        assert answers[1].startswith("error: ") and "fail" in answers[1]
        assert answers[2].startswith("error: ") and "valid integer" in answers[2]
        assert answers[3] == "error: Unknown tool: nix"
        assert [outcome.ok for outcome in observation.tool_outcomes] == [True, False, False, False, True, True]
        bad = await environment.step(turn(("add", {}), status=ToolCallStatus.MALFORMED))
        assert texts(bad) == ["error: It is bad."] and not bad.tool_outcomes[0].ok
        environment._timeout_s = 0.2
        late = await environment.step(turn(("wait", {})))
        assert "0.2 s" in texts(late)[0] and late.tool_outcomes[0].timed_out
        environment._timeout_s = 60.0
        assert texts(await environment.step(turn(("add", {"a": 2, "b": 2})))) == ["4"], "the connection went with it"


async def test_an_episode_has_one_server_whose_death_fails_it_and_which_ends_with_it() -> None:
    async with connected() as environment, connected() as other:
        for number in (1, 2, 3):
            assert texts(await environment.step(turn(("count", {})))) == [str(number)]
        assert texts(await other.step(turn(("count", {})))) == ["1"]
        servers = servers_of(psutil.Process().pid)
        assert len(servers) == 2
        for _ in range(2):
            with pytest.raises(Broken, match="has ended"):
                await environment.step(turn(("die", {})))
    await eventually(lambda: not any(server.is_running() for server in servers))


async def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(Broken, match="/no/such/program"):
        async with connected(command=["/no/such/program"]):
            pass
    with pytest.raises(Broken, match="MCP server"):
        async with connected(command=[sys.executable, "-c", "pass"]):
            pass


async def test_a_server_over_http_offers_the_same(address: str) -> None:
    async with connected(url=address, tools=["count", "add"]) as first, connected(url=address) as second:
        assert [tool.name for tool in await first.tools()] == ["count", "add"]
        assert texts(await first.step(turn(("add", {"a": 1, "b": 2}), ("count", {})))) == ["3", "1"]
        number, failed = texts(await second.step(turn(("count", {}), ("fail", {"why": "x"}))))
        assert number == "2" and failed.startswith("error: ") and "fail" in failed
        with pytest.raises(Broken):
            await second.step(turn(("die", {})))


async def test_tools_have_the_names_and_the_arguments_of_the_settings(address: str) -> None:
    plus = {"tool": "add", "parameters": ["a"], "arguments": {"b": 40}}
    either = {"tool": "add", "parameters": ["a", "b"], "arguments": {"b": 40}}
    async with connected(url=address, tools={"plus": plus, "either": either}) as environment:
        offered = {tool.name: tool for tool in await environment.tools()}
        assert list(offered) == ["either", "plus"], "in the order of their names"
        assert list(offered["plus"].parameters["properties"]) == ["a"]
        assert offered["plus"].description == "Adds two numbers."
        calls = turn(("plus", {"a": 2}), ("either", {"a": 2}), ("either", {"a": 2, "b": 3}))
        observation = await environment.step(calls)
        assert texts(observation) == ["42", "42", "5"]
        assert [outcome.name for outcome in observation.tool_outcomes] == ["plus", "either", "either"]
    async with connected(url=address, tools=["subtract"]) as environment:
        with pytest.raises(ValueError, match=r"'subtract'.* add, fail"):
            await environment.tools()


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Broken, match=r"http://127\.0\.0\.1"):
        async with connected(url=f"http://127.0.0.1:{free_port()}/mcp"):
            pass


PARAMETERS = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("country", "query", "limit", "backend")},
    "required": ["backend", "query"],
    "patternProperties": {"x-.*": {}},
}
SEARCH = ToolDefinition("web_search", "Finds pages.", PARAMETERS)
THERE = {"web_search": SEARCH}


def test_a_name_is_the_tool_as_the_server_describes_it() -> None:
    (offered,) = offered_tools(["web_search"]).values()
    assert offered.definition(THERE) == SEARCH
    (renamed,) = offered_tools({"search": {"tool": "web_search"}}).values()
    assert renamed.definition(THERE) == ToolDefinition("search", "Finds pages.", SEARCH.parameters)


def test_what_is_given_for_the_policy_is_not_offered_to_it() -> None:
    (offered,) = offered_tools({"web_search": {"arguments": {"backend": "b"}}}).values()
    shown = offered.definition(THERE).parameters
    assert list(shown["properties"]) == ["country", "query", "limit"] and shown["required"] == ["query"]
    assert shown["additionalProperties"] is False and "patternProperties" not in shown


def test_the_policy_may_give_what_is_named_also_where_there_is_a_value() -> None:
    table = {"tool": "web_search", "parameters": ["query", "limit"], "arguments": {"backend": "b", "limit": 3}}
    (offered,) = offered_tools({"search": table}).values()
    shown = offered.definition(THERE).parameters
    assert list(shown["properties"]) == ["query", "limit"] and shown["required"] == ["query"]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        (["find"], "'find'"),
        ({"find": {}}, "'find'"),
        ({"s": {"tool": "web_search", "parameters": ["page"]}}, "tools.s: web_search has no parameter 'page'"),
        ({"s": {"tool": "web_search", "arguments": {"page": 1}}}, "has no parameter 'page'"),
        ({"s": {"tool": "web_search", "parameters": ["query"]}}, "tools.s: web_search needs 'backend'"),
    ],
)
def test_what_the_server_does_not_have_is_named(tools: Any, problem: str) -> None:
    (offered,) = offered_tools(tools).values()
    with pytest.raises(ValueError) as refused:
        offered.definition(THERE)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("web_search", "tools.s: must be a table"),
        ({"name": "web_search"}, "tools.s: unknown key 'name'"),
        ({"parameters": "query"}, "tools.s.parameters "),
        ({"arguments": ["query"]}, "tools.s.arguments "),
        ({"tool": 3}, "tools.s.tool "),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table: Any, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        offered_tools({"s": table})
    assert problem in str(refused.value)
