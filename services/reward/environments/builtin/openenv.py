"""The environment `openenv`."""

import json
from collections.abc import Mapping
from typing import Any

from services.reward.environments.builtin.openenv_session import Refused, Session
from shoal.config.tables.endpoint import EndpointConfig
from shoal.conversation import ToolCall, ToolCallStatus, ToolDefinition
from shoal.environment import Broken, Environment, Observation, Turn
from shoal.environment.environment import CarriedOut, answer_calls

_SEEDS = 2**32
"""Seeds are below this number, because numpy takes no larger seeds."""


class OpenEnv(Environment):
    """An environment of an OpenEnv server at `base_url`.

    Each episode has its own session at the server. The policy acts in one of three ways: `action` names the field of
    the action that gets the text of each turn without its thoughts; or, with `mcp`, the policy calls the tools of the
    environment; or it calls one tool, named by `tool`, whose arguments are the fields of the action. `observation`
    names the field of observations that the policy reads, by default all of them, as JSON. The fields of the task go
    into `reset`, beside the seed. The server decides rewards and the ends of episodes. If an action is invalid, the
    policy reads the error; an exception in the environment fails the episode, unless `tells_errors`. `is_deterministic`
    declares that the environment is deterministic. An answer may take `timeout_s`, and a server without room for a
    session is asked again for `wait_s`. A server gets the key in the variable `api_key_env` as a bearer token.

    Metrics: `steps`, `refused`.
    """

    def __init__(
        self,
        base_url: str = "",
        api_key_env: str = "",
        action: str = "",
        mcp: bool = False,
        tool: str = "act",
        observation: str = "",
        tells_errors: bool = False,
        is_deterministic: bool = False,
        timeout_s: float = 30.0,
        wait_s: float = 30.0,
    ) -> None:
        if not base_url:
            raise ValueError("give base_url, the address of the OpenEnv server, such as http://10.0.0.8:8000")
        if action and mcp:
            raise ValueError("give either action (for turns of text) or mcp (for tools), not both")
        if wait_s <= 0:
            raise ValueError(f"wait_s must be above 0 (given: {wait_s})")
        self.is_deterministic = is_deterministic
        self._action, self._mcp, self._tool = action, mcp, tool
        self._observation, self._tells_errors = observation, tells_errors
        config = EndpointConfig(
            base_url=base_url, api_key_env=api_key_env, timeout_s=timeout_s, total_timeout_s=2 * timeout_s
        )
        self._session = Session(config, wait_s)

    async def tools(self) -> list[ToolDefinition]:
        """Returns the offered tools. Raises `ValueError` for settings that contradict the server's schemas, and
        `Broken` if the server fails."""
        action, observation = await self._session.schemas()
        _check_field("observation", self._observation, observation)
        if self._action:
            _check_field("action", self._action, action)
            if others := {*action.get("required", ())} - {self._action}:
                raise ValueError(
                    f"an action needs the field {sorted(others)[0]!r} in addition to {self._action!r}: unset `action`, "
                    "so that the policy calls a tool that has all fields"
                )
            return []
        if self._mcp:
            data = await self._asked("step", {"type": "list_tools"})
            return [_tool_of(tool) for tool in _field(data, "observation", dict).get("tools") or ()]
        fields = {name: schema for name, schema in action.get("properties", {}).items() if name != "metadata"}
        if {"tool_name", "arguments"} <= fields.keys():
            raise ValueError("the actions of the server's environment are tool calls: set mcp = true")
        return [ToolDefinition(self._tool, action.get("description", "Act."), {**action, "properties": fields})]

    async def reset(self, task: dict[str, Any], seed: int) -> Observation:
        """Begins the episode. Raises `Broken`."""
        self.metrics |= {"steps": 0, "refused": 0}
        data = await self._asked("reset", {"seed": seed % _SEEDS, **task})
        return Observation(self._text_of(data) or (), done=bool(data.get("done")))

    async def step(self, turn: Turn) -> Observation:
        """Carries out the turn, or its tool calls until one ends the episode. Raises `Broken`."""
        if self._action:
            return (await self._carried_out({self._action: turn.answer}))[0]
        return await answer_calls(turn, self._called)

    async def close(self) -> None:
        """Ends the session."""
        await self._session.close()

    async def _called(self, call: ToolCall) -> CarriedOut:
        if call.status is not ToolCallStatus.OK:
            return Observation(f"error: {call.detail}"), False, False
        arguments = json.loads(call.arguments_json or "{}")
        if self._mcp:
            return await self._carried_out({"type": "call_tool", "tool_name": call.name, "arguments": arguments})
        return await self._carried_out(arguments)

    async def _carried_out(self, action: Mapping[str, Any]) -> CarriedOut:
        self.metrics["steps"] += 1
        try:
            data = await self._session.ask("step", action)
        except Refused as error:
            if error.code != "VALIDATION_ERROR" and not self._tells_errors:
                raise Broken(f"the OpenEnv server failed in a step: {error}") from None
            self.metrics["refused"] += 1
            return Observation(f"error: {error}"), False, False
        wrong: Any = _field(data, "observation", dict).get("error") if self._mcp else None
        is_refused = isinstance(wrong, Mapping)
        self.metrics["refused"] += is_refused
        text = f"error: {wrong.get('message', '')}" if is_refused else self._text_of(data)
        return Observation(text, _reward_of(data), bool(data.get("done"))), not is_refused, False

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._session.ask(kind, data)
        except Refused as error:
            raise Broken(f"the OpenEnv server refused {kind!r}: {error}") from None

    def _text_of(self, data: Mapping[str, Any]) -> str:
        """Returns the policy's text for an observation."""
        observation = _field(data, "observation", dict)
        if self._observation:
            return _written(observation.get(self._observation))
        if self._mcp and "result" in observation:
            return _result_of(observation["result"])
        shown = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
        return _written(next(iter(shown.values())) if len(shown) == 1 else shown) if shown else ""


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind):
        raise Broken(f"the OpenEnv server's answer has no {name}: {str(data)[:200]}")
    return value


def _reward_of(data: Mapping[str, Any]) -> float | None:
    reward = data.get("reward")
    # True is an int to Python, but it is not an amount.
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise Broken(f"the OpenEnv server gave a reward that is not a number: {str(reward)[:200]}")
    return None if reward is None else float(reward)


def _result_of(result: Any) -> str:
    """Returns the text of an MCP tool's result."""
    if not isinstance(result, Mapping):
        return _written(result)
    parts = [part.get("text", "") for part in result.get("content") or () if isinstance(part, Mapping)]
    return "\n".join(parts) if parts else _written(result.get("data", result))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _tool_of(tool: Mapping[str, Any]) -> ToolDefinition:
    schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    return ToolDefinition(tool["name"], tool.get("description") or "", schema)


def _check_field(setting: str, name: str, schema: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a field that the schema does not have."""
    fields = schema.get("properties", {})
    if name and name not in fields:
        raise ValueError(f"{setting}: the server's {setting}s have no field {name!r}; they have: {', '.join(fields)}")
