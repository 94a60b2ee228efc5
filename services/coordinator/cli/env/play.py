"""An episode in the terminal: a person in the place of the policy."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.coordinator.cli.env.process import (
    environments_config,
    environments_of,
    json_object,
    server_of,
    stub_of,
    with_built_in,
    with_tables,
)
from shoal.config import RunConfig, dump_config
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.tool_calls import Parser, make_parser
from shoal.errors import InvalidArgument
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.visible_text import visible
from shoal.wire.conversations import chat_message_to_wire, struct_to_wire, tool_from_wire

if TYPE_CHECKING:
    from shoal.v1.environment_pb2_grpc import EnvironmentServiceAsyncStub

_EPISODE_TIMEOUT_S = 24 * 3600.0
_CALL_TIMEOUT_S = 60.0
_OUTCOMES = {
    rollout_pb2.SCORE_OUTCOME_SCORED: "scored",
    rollout_pb2.SCORE_OUTCOME_UNSCORABLE: "unscorable",
    rollout_pb2.SCORE_OUTCOME_FAILED: "failed",
}


def play_here(
    name: str, task: str, seed: int, config_file: Path | None, overrides: Sequence[str], address: str
) -> bool:
    """Plays one episode with the lines of stdin as turns; returns whether the environment failed.

    Raises `InvalidArgument` for an unknown environment, and for a task that is none.
    """
    config = environments_config(config_file, overrides)
    if not address:
        name, config = _with(config, name)
    start = pb.EpisodeStart(
        episode_id="play",
        environment=name,
        task=struct_to_wire(json_object(task, "--task")),
        seed=seed,
        call_timeout_s=_CALL_TIMEOUT_S,
    )

    async def play(server: str) -> bool:
        async with stub_of(server) as stub:
            return await _Session(stub, start).play()

    with server_of(config, address) as server:
        return asyncio.run(play(server))


def _with(config: RunConfig, name: str) -> tuple[str, RunConfig]:
    """Returns a name and the configuration in which it stands: one environment, and no others that would start."""
    if ":" in name:
        return "played", with_tables(dump_config(config) | {"environments": []}, [{"name": "played", "source": name}])
    known = {one.name: one for one in with_built_in(config).environments}
    if name not in known:
        raise InvalidArgument(f"there is no environment {name!r}; there are: {', '.join(sorted(known))}")
    return name, config.model_copy(update={"environments": [known[name]]})


class _Session:
    """One episode, with its stream."""

    def __init__(self, stub: "EnvironmentServiceAsyncStub", start: pb.EpisodeStart) -> None:
        self._stub, self._start = stub, start
        self._requests: asyncio.Queue[pb.RunEpisodeRequest | None] = asyncio.Queue()
        self._requests.put_nowait(pb.RunEpisodeRequest(start=start))
        self._parse: Parser = make_parser("hermes")
        self._reward = 0.0
        self._is_agent = False

    async def play(self) -> bool:
        """Returns whether the environment failed."""
        tools = await self._tools()
        for tool in tools:
            print(f"tool: /{tool.name} {json.dumps(tool.parameters.get('properties', {}))}  {tool.description}")
        number = 0
        async for response in self._stub.RunEpisode(self._stream(), timeout=_EPISODE_TIMEOUT_S):
            if response.WhichOneof("part") == "result":
                return self._show_result(response.result)
            if response.WhichOneof("part") == "call":
                await self._answer(response.call)
                continue
            self._show(response.observation)
            if not response.observation.done and not self._is_agent:
                number += 1
                await self._take_turn(number, tools)
        raise InvalidArgument("the server ended the episode without a result")

    async def _tools(self) -> list[ToolDefinition]:
        found = {info.name: info for info in await environments_of(self._stub)}
        if self._start.environment not in found:
            raise InvalidArgument(
                f"there is no environment {self._start.environment!r}; there are: {', '.join(sorted(found))}"
            )
        if why := found[self._start.environment].unavailable:
            raise InvalidArgument(f"{self._start.environment} cannot work here: {why}")
        self._is_agent = found[self._start.environment].is_agent
        return [tool_from_wire(tool) for tool in found[self._start.environment].tools]

    async def _stream(self) -> AsyncIterator[pb.RunEpisodeRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _take_turn(self, number: int, tools: Sequence[ToolDefinition]) -> None:
        if (message := await self._said(number, tools)) is None:
            return
        turn = pb.PolicyTurn(number=number, message=message, finish_reason=rollout_pb2.FINISH_REASON_STOP)
        self._requests.put_nowait(pb.RunEpisodeRequest(turn=turn))

    async def _answer(self, call: pb.PolicyCall) -> None:
        """Answers a call of an agent. What it says anew is what follows the last answer."""
        roles = [message.role for message in call.messages]
        num_known = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
        _show_messages(call.messages[num_known:])
        for tool in call.tools:
            print(f"tool: /{tool.name}  {tool.description}")
        if (message := await self._said(1, [tool_from_wire(tool) for tool in call.tools])) is None:
            return
        answer = pb.PolicyAnswer(message=message, finish_reason=rollout_pb2.FINISH_REASON_STOP)
        self._requests.put_nowait(pb.RunEpisodeRequest(reply=pb.PolicyReply(call_id=call.call_id, answer=answer)))

    async def _said(self, number: int, tools: Sequence[ToolDefinition]) -> rollout_pb2.ChatMessage | None:
        """Reads a line as what the policy says; at the end of the input, ends the episode."""
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            end = pb.EpisodeEnd(stop_reason="no_call")
            self._requests.put_nowait(pb.RunEpisodeRequest(end=end))
            return None
        text = line.rstrip("\n")
        parsed = self._parse(_as_call(text) if tools else text, tools, number)
        return chat_message_to_wire(ChatMessage("assistant", parsed.content, parsed.calls))

    def _show(self, observation: pb.Observation) -> None:
        _show_messages(observation.messages)
        if observation.HasField("reward"):
            self._reward += observation.reward
            print(f"reward: {observation.reward:g}")

    def _show_result(self, result: pb.EpisodeResult) -> bool:
        self._requests.put_nowait(None)
        if result.HasField("reward"):
            self._reward += result.reward
        outcome = _OUTCOMES.get(result.outcome, "unknown")
        summary = {
            "outcome": outcome,
            "reward": self._reward if outcome == "scored" else None,
            "metrics": dict(result.metrics),
            "detail": result.detail,
        }
        print(json.dumps(summary))
        return outcome == "failed"


def _show_messages(messages: Iterable[rollout_pb2.ChatMessage]) -> None:
    for message in messages:
        who = f"{message.role} {message.name}".strip()
        for line in message.content.splitlines() or [""]:
            print(f"{who}: {visible(line)}")


def _as_call(text: str) -> str:
    """Returns a line "/tool {...}" as the parser reads a call; any other line unchanged."""
    if not text.startswith("/"):
        return text
    name, _, arguments = text[1:].partition(" ")
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments.strip() or "{}"}}}</tool_call>'
