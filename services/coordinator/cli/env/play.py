"""An episode in the terminal: a person in the place of the policy."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from services.coordinator.cli.env.requests import (
    Game,
    Origins,
    alone,
    environments_of,
    json_object,
    server_of,
    stub_of,
    tool_names,
    with_built_in,
)
from shoal.config import RunConfig, dump_config
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.tool_calls import Parser, make_parser
from shoal.episodes.typed_call import typed_call
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


class Person:
    """Reads one line of the input for each turn, until the input ends."""

    async def say(self, tools: Sequence[ToolDefinition]) -> str | None:
        """Returns the next turn, with tool calls in the format "hermes"; None at the end of the input."""
        while (line := await self._line()) is not None:
            try:
                return typed_call(line, tools)
            except InvalidArgument as error:
                print(f"{error.message}; the line was not played as a turn")
        return None

    async def _line(self) -> str | None:
        if sys.stdin is None:  # It was closed when the program began.
            return None
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        # Bytes that are not text are read as halves of characters, which protobuf cannot carry.
        return line.rstrip("\n").encode("utf-8", "replace").decode("utf-8") if line else None


def play_here(game: Game, prompt: str, origins: Origins) -> bool:
    """Plays one episode; returns whether the environment failed. The policy first reads the prompt if there is one.

    Raises `InvalidArgument` for an unknown environment, and for an invalid task.
    """
    name, config = game.name, origins.config()
    if not origins.address:
        name, config = _with(config, game)
    elif json_object(game.settings, "--settings") or game.interpreter:
        raise InvalidArgument(
            "--settings and --interpreter apply only to an environment on this machine: leave them out, or leave out "
            "--address, which names a server"
        )
    offered = tool_names(game.tools)
    start = pb.EpisodeStart(
        episode_id="play",
        environment=name,
        task=struct_to_wire(json_object(game.task, "--task")),
        seed=game.seed,
        messages=[chat_message_to_wire(ChatMessage("user", prompt))] if prompt else [],
        call_timeout_s=_CALL_TIMEOUT_S,
        tools=None if offered is None else rollout_pb2.ToolNames(names=offered),
    )

    async def play(server: str) -> bool:
        async with stub_of(server) as stub:
            return await _Session(stub, start).play()

    with server_of(config, origins.address) as server:
        return asyncio.run(play(server))


def _with(config: RunConfig, game: Game) -> tuple[str, RunConfig]:
    """Returns the name of an environment, and a configuration with only that environment.

    So other environments need not start, or be complete.
    """
    if ":" in game.name:
        table: dict[str, Any] = {"name": "played", "source": game.name}
    else:
        known = {one["name"]: one for one in dump_config(with_built_in(config))["environments"]}
        if game.name not in known:
            raise InvalidArgument(
                f"there is no environment {game.name!r}: choose one of {', '.join(sorted(known))}, or your own code "
                'as "file.py:Class"'
            )
        table = known[game.name]
    settings = {**table.get("settings", {}), **json_object(game.settings, "--settings")}
    interpreter = game.interpreter or table.get("interpreter", "")
    return table["name"], alone(table | {"settings": settings, "interpreter": interpreter})


class _Session:
    """One episode, and its stream."""

    def __init__(self, stub: "EnvironmentServiceAsyncStub", start: pb.EpisodeStart) -> None:
        self._stub, self._start, self._person = stub, start, Person()
        self._requests: asyncio.Queue[pb.RunEpisodeRequest | None] = asyncio.Queue()
        self._requests.put_nowait(pb.RunEpisodeRequest(start=start))
        self._parse: Parser = make_parser("hermes")
        self._last: ChatMessage | None = None
        """The last message."""
        self._num_said = 0
        self._reward = 0.0

    async def play(self) -> bool:
        """Returns whether the environment failed."""
        info = await self._info()
        tools = [tool_from_wire(tool) for tool in info.tools if self._offers(tool.name)]
        for tool in tools:
            properties = json.dumps(tool.parameters.get("properties", {}))
            print(visible(f"tool: /{tool.name} {properties}  {tool.description}"))
        async for response in self._stub.RunEpisode(self._stream(), timeout=_EPISODE_TIMEOUT_S):
            if response.WhichOneof("part") == "result":
                return self._show_result(response.result)
            if response.WhichOneof("part") == "call":
                self._requests.put_nowait(await self._answered(response.call))
                continue
            self._show(response.observation)
            if not response.observation.done and not info.is_agent:
                self._requests.put_nowait(await self._next_turn(response.observation, tools))
        raise InvalidArgument("the server ended the episode without a result: look for the cause in its log")

    async def _info(self) -> pb.EnvironmentInfo:
        found = {info.name: info for info in await environments_of(self._stub)}
        name = self._start.environment
        if name not in found:
            raise InvalidArgument(f"there is no environment {name!r}: choose one of {', '.join(sorted(found))}")
        if why := found[name].unavailable:
            raise InvalidArgument(f"environment {name} is unavailable: {why}")
        return found[name]

    def _offers(self, tool: str) -> bool:
        return not self._start.HasField("tools") or tool in self._start.tools.names

    async def _stream(self) -> AsyncIterator[pb.RunEpisodeRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _next_turn(self, seen: pb.Observation, tools: Sequence[ToolDefinition]) -> pb.RunEpisodeRequest:
        if self._last is not None and not (self._last.tool_calls or seen.messages):
            print("(the environment does not answer a turn without a call: in a run, the episode ends here)")
        if (message := await self._said(tools)) is None:
            return _end()
        said = chat_message_to_wire(message)
        turn = pb.PolicyTurn(number=self._num_said, message=said, finish_reason=rollout_pb2.FINISH_REASON_STOP)
        return pb.RunEpisodeRequest(turn=turn)

    async def _answered(self, call: pb.PolicyCall) -> pb.RunEpisodeRequest:
        """Answers a call of an agent. The new messages of the call are those after the last answer."""
        if call.token_ids:
            detail = "only a policy in training can answer a call with tokens: call /v1/chat/completions instead"
            refusal = pb.PolicyRefusal(reason=pb.POLICY_REFUSAL_REASON_INVALID, detail=detail)
            return pb.RunEpisodeRequest(reply=pb.PolicyReply(call_id=call.call_id, refusal=refusal))
        roles = [message.role for message in call.messages]
        num_known = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
        _show_messages(call.messages[num_known:])
        for tool in call.tools:
            print(visible(f"tool: /{tool.name}  {tool.description}"))
        if (message := await self._said([tool_from_wire(tool) for tool in call.tools])) is None:
            return _end()
        answer = pb.PolicyAnswer(message=chat_message_to_wire(message), finish_reason=rollout_pb2.FINISH_REASON_STOP)
        return pb.RunEpisodeRequest(reply=pb.PolicyReply(call_id=call.call_id, answer=answer))

    async def _said(self, tools: Sequence[ToolDefinition]) -> ChatMessage | None:
        """Returns the next message; None if the episode ends."""
        if (text := await self._person.say(tools)) is None:
            return None
        self._num_said += 1
        parsed = self._parse(text, tools, self._num_said)
        self._last = ChatMessage("assistant", parsed.content, parsed.calls)
        return self._last

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


def _end() -> pb.RunEpisodeRequest:
    return pb.RunEpisodeRequest(end=pb.EpisodeEnd(stop_reason="no_call"))


def _show_messages(messages: Iterable[rollout_pb2.ChatMessage]) -> None:
    for message in messages:
        who = visible(f"{message.role} {message.name}".strip())
        for line in message.content.splitlines() or ([] if message.tool_calls else [""]):
            print(f"{who}: {visible(line)}")
        for call in message.tool_calls:
            print(f"{who}: {visible(f'/{call.name} {call.arguments_json}')}")
