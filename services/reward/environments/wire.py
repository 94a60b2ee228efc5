"""Episodes as messages of the contract, and as the JSON that processes read and write."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.reward.environments.episode import Start
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.rollout import ToolOutcome
from shoal.scores import ScoreOutcome
from shoal.v1 import environment_pb2
from shoal.wire import finish_reason_from_wire, invalid
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire, struct_from_wire, tool_to_wire
from shoal.wire.episodes import tool_outcome_to_wire
from shoal.wire.scores import outcome_to_wire

_DEFAULT_CALL_TIMEOUT_S, _MAX_CALL_TIMEOUT_S = 60.0, 86_400.0
_MAX_SEED = 2**53


def start_from_wire(message: environment_pb2.EpisodeStart) -> Start:
    """Reads a start. Raises `InvalidArgument`, whose message names the field."""
    if not 0 <= message.seed < _MAX_SEED:
        raise invalid("start.seed", f"must be in [0, 2^53) (given: {message.seed})")
    timeout_s = message.call_timeout_s or _DEFAULT_CALL_TIMEOUT_S
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= _MAX_CALL_TIMEOUT_S):
        raise invalid("start.call_timeout_s", f"must be above 0 and at most a day (given: {message.call_timeout_s:g})")
    return Start(
        message.episode_id,
        struct_from_wire(message.task, "start.task"),
        message.seed,
        [asdict(chat_message_from_wire(one)) for one in message.messages],
        timeout_s,
        tuple(message.tools.names) if message.HasField("tools") else None,
    )


def turn_from_wire(message: environment_pb2.PolicyTurn, number: int) -> dict[str, Any]:
    """Reads a turn, which must have the given number. Raises `InvalidArgument` that names the field."""
    if message.number != number:
        raise invalid("turn.number", f"must be {number}, in order (given: {message.number})")
    return {
        "number": number,
        "message": asdict(chat_message_from_wire(message.message)),
        "finish_reason": finish_reason_from_wire(message.finish_reason),
        "num_tokens": message.num_tokens,
        "opened_thought": message.opened_thought,
    }


def observation_to_wire(observation: Mapping[str, Any], turn: int) -> environment_pb2.RunEpisodeResponse:
    return environment_pb2.RunEpisodeResponse(
        observation=environment_pb2.Observation(
            turn=turn,
            messages=[chat_message_to_wire(ChatMessage(**message)) for message in observation["messages"]],
            reward=observation["reward"],
            done=observation["done"],
            tool_outcomes=[tool_outcome_to_wire(ToolOutcome(**one)) for one in observation["tool_outcomes"]],
        )
    )


def result_to_wire(result: Mapping[str, Any], unread: Sequence[str] = ()) -> environment_pb2.RunEpisodeResponse:
    """Makes the message of a result. `unread` has the calls whose answers an agent never read."""
    return environment_pb2.RunEpisodeResponse(
        result=environment_pb2.EpisodeResult(
            outcome=outcome_to_wire(ScoreOutcome.SCORED), unread_call_ids=unread, **result
        )
    )


def failure_to_wire(outcome: ScoreOutcome, detail: str) -> environment_pb2.RunEpisodeResponse:
    return environment_pb2.RunEpisodeResponse(
        result=environment_pb2.EpisodeResult(outcome=outcome_to_wire(outcome), detail=detail)
    )


def info_to_wire(name: str, described: Mapping[str, Any]) -> environment_pb2.EnvironmentInfo:
    return environment_pb2.EnvironmentInfo(
        name=name,
        description=described["description"] or "",
        tools=[tool_to_wire(ToolDefinition(**tool)) for tool in described["tools"]],
        is_deterministic=described["is_deterministic"],
        code_digest=described["digest"],
        unavailable=described["unavailable"],
        is_agent=described["is_agent"],
    )
