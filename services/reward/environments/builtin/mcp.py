"""The environment `mcp`."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.reward.environments.builtin.dr_tulu_results import DR_TULU_TOOLS, dr_tulu_result, result_id
from services.reward.process.descendants import MARK_VARIABLE
from shoal.conversation import ToolCall, ToolCallStatus, ToolDefinition
from shoal.environment import Broken, Environment, Observation, Turn
from shoal.environment.environment import CarriedOut, answer_calls

_KEYS = ("tool", "parameters", "arguments")


@dataclass(frozen=True)
class OfferedTool:
    """A tool that a policy is offered."""

    name: str
    """The name that the policy calls."""
    tool: str
    """The tool's name at the server."""
    parameters: tuple[str, ...] | None = None
    """The parameters that the policy may give; None for all parameters that `arguments` does not have."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the server gets when the policy does not give them."""

    def definition(self, there: Mapping[str, ToolDefinition]) -> ToolDefinition:
        """Returns the definition for the policy; the server's tools `there` describe the arguments. Raises `ValueError`
        for a tool or a parameter that the server does not have, and for a required parameter without a source."""
        if self.tool not in there:
            raise ValueError(f"the MCP server has no tool {self.tool!r}; it has: {', '.join(there)}")
        described, schema = there[self.tool].description, there[self.tool].parameters
        if self.parameters is None and not self.arguments:
            return ToolDefinition(self.name, described, schema)
        properties = schema.get("properties") or {}
        for name in (*(self.parameters or ()), *self.arguments):
            if name not in properties:
                has = ", ".join(properties) or "none"
                raise ValueError(f"tools.{self.name}: {self.tool} has no parameter {name!r}; it has: {has}")
        given = self.parameters
        if given is None:
            given = tuple(name for name in properties if name not in self.arguments)
        required = [name for name in schema.get("required") or () if name not in self.arguments]
        for name in required:
            if name not in given:
                raise ValueError(f"tools.{self.name}: {self.tool} needs {name!r}: name it in parameters or arguments")
        shown = {key: value for key, value in schema.items() if key != "patternProperties"} | {
            "properties": {name: properties[name] for name in given},
            "required": required,
            "additionalProperties": False,
        }
        return ToolDefinition(self.name, described, shown)


def offered_tools(tools: Sequence[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, OfferedTool]:
    """Reads the setting `tools`, a list of names or a table of tables. Sorts tables by name, since settings lose the
    order of keys on their way here. Raises `ValueError`."""
    if not isinstance(tools, Mapping):
        return {name: OfferedTool(name, name) for name in tools}
    return {name: _offered(name, table) for name, table in sorted(tools.items())}


def _offered(name: str, table: Any) -> OfferedTool:
    if not isinstance(table, Mapping) or (unknown := sorted({*table} - {*_KEYS})):
        problem = f"unknown key {unknown[0]!r}" if isinstance(table, Mapping) else "must be a table"
        raise ValueError(f"tools.{name}: {problem}; known keys: {', '.join(_KEYS)}")
    parameters, arguments = table.get("parameters"), table.get("arguments", {})
    if not isinstance(parameters, list | tuple | None) or not all(isinstance(one, str) for one in parameters or ()):
        raise ValueError(f"tools.{name}.parameters must be a list of names (given: {parameters!r:.80})")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"tools.{name}.arguments must be a table (given: {arguments!r:.80})")
    tool = table.get("tool", name)
    if not isinstance(tool, str) or not tool:
        raise ValueError(f"tools.{name}.tool must be the name of a tool (given: {tool!r:.80})")
    return OfferedTool(name, tool, None if parameters is None else tuple(parameters), arguments)


class Mcp(Environment):
    """The tools of an MCP server: a program that is started (`command`, a list), or one that is reached at `url`.

    Each episode has its own connection, and with `command` its own server. `tools` has the names of the offered tools,
    by default all tools; or `tools` is a table of `OfferedTool`, by the names that the policy calls. A program gets a
    few environment variables, and the variables that `variables` names. A server at a `url` gets the key in the
    variable `api_key_env` as a bearer token. A call may take `timeout_s`. `results` is the form in which the policy
    reads results: "text", the server's text, or "dr_tulu", documents with ids (see `dr_tulu_results`).

    The environment gives no rewards: the verifiers of the data give them. The policy reads the error of a failed call;
    if the server ends, the episode fails.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        url: str = "",
        api_key_env: str = "",
        variables: Sequence[str] = (),
        tools: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        # The policy is told that a longer call timed out. Past `episodes.call_timeout_s` (default 60) the episode
        # fails.
        timeout_s: float = 50.0,
        results: str = "text",
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError("give either command, such as ['python', 'server.py'], or url")
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("url must begin with http:// or https:// and name a host")
        if api_key_env and not os.environ.get(api_key_env):
            raise ValueError(f"this reward service's environment has no {api_key_env}: set it, or unset api_key_env")
        self._command, self._url, self._variables = list(command), url, list(variables)
        self._key = os.environ[api_key_env].strip() if api_key_env else ""
        self._offered, self._timeout_s = offered_tools(tools), timeout_s
        _check_results(results, self._offered)
        self._has_documents, self._seed = results == "dr_tulu", 0
        self._client: Any = None
        self._holder: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def reset(self, task: dict[str, Any], seed: int) -> None:
        """Connects. Raises `Broken`."""
        self._seed = seed
        await self._connect()

    async def tools(self) -> list[ToolDefinition]:
        """Returns the offered tools. Raises `ValueError` for a tool that the server does not have, or that has other
        parameters."""
        await self._connect()
        there: dict[str, ToolDefinition] = {}
        cursor, is_last = None, False
        while not is_last:
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                there[tool.name] = ToolDefinition(tool.name, tool.description or "", tool.input_schema)
            cursor, is_last = page.next_cursor, not page.next_cursor
        return [offered.definition(there) for offered in self._offered.values()] or list(there.values())

    async def step(self, turn: Turn) -> Observation:
        """Carries out the tool calls of a turn, one after the other. Raises `Broken`."""
        return await answer_calls(turn, self._call)

    async def close(self) -> None:
        """Ends the connection, and the server if it was started for the connection."""
        self._closing.set()
        if self._holder is not None:
            with contextlib.suppress(Exception):
                await self._holder

    async def _call(self, call: ToolCall) -> CarriedOut:
        text, ok, timed_out = await self._carried_out(call)
        if not ok:
            text = f"error: {text}"
        elif self._has_documents:
            url = json.loads(call.arguments_json).get("url")  # The schema may take anything.
            page = url.strip() if isinstance(url, str) else ""
            text, ok = dr_tulu_result(self._offered[call.name].tool, text, result_id(self._seed, call.id), page)
        if self._has_documents:
            text = f"<tool_output>{text}</tool_output>"
        return Observation(text), ok, timed_out

    async def _carried_out(self, call: ToolCall) -> tuple[str, bool, bool]:
        """Returns the server's answer, whether the call worked, and whether it took too long."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        if call.status is not ToolCallStatus.OK:
            return call.detail, False, False
        if self._holder is None or self._holder.done():
            raise Broken("the MCP server has ended")
        offered = self._offered.get(call.name, OfferedTool(call.name, call.name))
        arguments = {**offered.arguments, **json.loads(call.arguments_json)}
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                result = await self._client.call_tool(offered.tool, arguments)
            return _text_of(result), not result.is_error, False
        except TimeoutError:
            if not limit.expired():
                raise
            return f"{call.name} took longer than {self._timeout_s:g} s", False, True
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise Broken("the MCP server has ended, or closed the connection") from None
            return str(error), False, False

    async def _connect(self) -> None:
        """Connects once. Raises `Broken` if that fails."""
        if self._holder is not None:
            return
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The task that opened a connection must close it, and each method may run in another task.
        self._holder = asyncio.create_task(self._hold(connected))
        await connected

    async def _hold(self, connected: "asyncio.Future[None]") -> None:
        from mcp import Client

        try:
            async with self._transport() as transport, Client(transport) as self._client:
                connected.set_result(None)
                await self._closing.wait()
        except Exception as error:
            reason = _reason(error)
            if not connected.done():
                place = self._url or " ".join(self._command)
                connected.set_exception(Broken(f"no connection with the MCP server {place}: {reason}"))
            elif not self._closing.is_set():
                raise Broken(f"the MCP server has ended: {reason}") from None

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        from mcp import StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        if self._command:
            # With the mark, the service finds processes that the server leaves behind.
            names = [MARK_VARIABLE, *self._variables]
            variables = {name: os.environ[name] for name in names if name in os.environ}
            yield StdioServerParameters(command=self._command[0], args=self._command[1:], env=variables)
            return
        import httpx2

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # Use no proxies or credentials of the environment: the configuration decides where requests go. Set no read
        # timeout: it would end the connection together with the call.
        limit = httpx2.Timeout(self._timeout_s, read=None)
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=limit) as http:
            yield streamable_http_client(self._url, http_client=http)


def _check_results(results: str, offered: Mapping[str, OfferedTool]) -> None:
    """Raises `ValueError` for an unknown form of results, and for tools that the form does not support."""
    if results not in ("text", "dr_tulu"):
        raise ValueError(f"results must be 'text' or 'dr_tulu' (given: {results!r})")
    unknown = [tool.tool for tool in offered.values() if tool.tool not in DR_TULU_TOOLS]
    if results == "dr_tulu" and (unknown or not offered):
        problem = f"tools also names {unknown[0]}" if unknown else "list the offered tools in tools"
        raise ValueError(f"results = 'dr_tulu' supports only the tools {', '.join(DR_TULU_TOOLS)}: {problem}")


def _text_of(result: Any) -> str:
    """Returns the texts of an answer. Names content that is not text, and writes a structure without text as JSON."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    """Returns the message of the first error in an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
