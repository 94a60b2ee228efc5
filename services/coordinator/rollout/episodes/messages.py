"""The messages of an episode: requests to an environment, its answers, and an agent's calls of the policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from shoal.arrays import Float32Array, Int32Array
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask, FinishReason, ToolOutcome, WeightVersion
from shoal.scores import MAX_REWARD, ScoreOutcome
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.visible_text import visible
from shoal.wire import finish_reason_to_wire, version_to_wire
from shoal.wire.arrays import float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire, struct_to_wire, tool_from_wire
from shoal.wire.episodes import tool_outcome_from_wire
from shoal.wire.scores import outcome_from_wire

_MAX_DURATION_S = 7 * 86400.0
"""Maximum duration in an environment's message. It is longer than any episode."""
_MAX_NAME_CHARS = 100
_MAX_DETAIL_CHARS = 500
_MAX_METRICS = 64
_MAX_METRIC = 1e300
"""Largest metric. Larger values, such as the largest float as the worst score, have no mean."""


@dataclass(frozen=True)
class EpisodeStart:
    """The start of an episode."""

    episode_id: str
    task: EnvironmentTask
    seed: int
    messages: tuple[ChatMessage, ...]
    call_timeout_s: float
    max_context_tokens: int = 0
    num_sharing: int = 1
    """Most episodes that share a process of the environment, in which blocking calls run one after the other."""


@dataclass(frozen=True)
class PolicyTurn:
    """A turn of the policy, as the environment sees it."""

    number: int
    """The number of the turn, from 1."""
    message: ChatMessage
    finish_reason: FinishReason
    num_tokens: int
    opened_thought: str = ""
    """The mark of the thought with which the chat template begins the turn; empty without a thought."""


@dataclass(frozen=True)
class Observation:
    """The environment's answer to the start or to a turn."""

    messages: tuple[ChatMessage, ...]
    reward: float | None
    is_done: bool
    tool_outcomes: tuple[ToolOutcome, ...]


@dataclass(frozen=True)
class EpisodeResult:
    """The environment's result of an episode."""

    outcome: ScoreOutcome
    reward: float | None
    metrics: dict[str, float]
    detail: str
    turn_rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards of an agent's turns, by the id of the call."""
    unread_call_ids: tuple[str, ...] = ()
    """The calls whose answers an agent never read."""


class BrokenEpisode(Exception):
    """Raised when the environment reports that it broke."""


def start_to_wire(start: EpisodeStart, replay: Sequence[PolicyTurn]) -> pb.EpisodeStart:
    """Converts a start; `replay` has the turns that were played before."""
    return pb.EpisodeStart(
        episode_id=start.episode_id,
        environment=start.task.environment,
        task=struct_to_wire(start.task.task),
        seed=start.seed,
        messages=map(chat_message_to_wire, start.messages),
        call_timeout_s=start.call_timeout_s,
        max_context_tokens=start.max_context_tokens,
        replay=map(turn_to_wire, replay),
        tools=None if start.task.tools is None else rollout_pb2.ToolNames(names=start.task.tools),
    )


def turn_to_wire(turn: PolicyTurn) -> pb.PolicyTurn:
    return pb.PolicyTurn(
        number=turn.number,
        message=chat_message_to_wire(turn.message),
        finish_reason=finish_reason_to_wire(turn.finish_reason),
        num_tokens=turn.num_tokens,
        opened_thought=turn.opened_thought,
    )


def observation_from_wire(message: pb.Observation) -> Observation:
    """Converts an answer. Raises `BrokenEpisode` for an unreadable message, and an impossible reward or duration."""
    try:
        messages = tuple(map(chat_message_from_wire, message.messages))
    except InvalidArgument as error:
        raise BrokenEpisode(f"the environment sent a message that cannot be read: {error.message}") from None
    return Observation(
        messages,
        _finite(message.reward) if message.HasField("reward") else None,
        message.done,
        tuple(map(_tool_outcome, message.tool_outcomes)),
    )


def result_from_wire(message: pb.EpisodeResult) -> EpisodeResult:
    """Converts a result. Raises `BrokenEpisode` for a missing outcome, and for impossible rewards or metrics."""
    try:
        outcome = outcome_from_wire(message.outcome, "result.outcome")
    except InvalidArgument as error:
        raise BrokenEpisode(f"the environment sent a result that cannot be read: {error.message}") from None
    if len(message.metrics) > _MAX_METRICS:
        raise BrokenEpisode(f"the environment gave {len(message.metrics)} metrics; at most {_MAX_METRICS} are allowed")
    for name, value in message.metrics.items():
        if not abs(value) <= _MAX_METRIC:  # NaN is not either.
            raise BrokenEpisode(
                f"the environment gave the metric {name!r:.60} as {value:g}; it must be from {-_MAX_METRIC:g} to "
                f"{_MAX_METRIC:g}"
            )
    return EpisodeResult(
        outcome,
        _finite(message.reward) if message.HasField("reward") else None,
        {metric_name(name): value for name, value in message.metrics.items()},
        message.detail[:_MAX_DETAIL_CHARS],
        {call_id: _finite(reward) for call_id, reward in message.turn_rewards.items()},
        tuple(message.unread_call_ids),
    )


def metric_name(name: str) -> str:
    """Returns a name in one line, without control characters. Environments and agents may take names from anywhere."""
    return " ".join(visible(name).split())[:_MAX_NAME_CHARS]


def _tool_outcome(message: rollout_pb2.ToolOutcome) -> ToolOutcome:
    """Converts an outcome. Raises `BrokenEpisode` for an impossible duration. A clock that was set back gives 0."""
    outcome = tool_outcome_from_wire(message)
    if not outcome.duration_s <= _MAX_DURATION_S:  # NaN is not either.
        raise BrokenEpisode(
            f"the environment says that a call of {outcome.name!r:.60} took {outcome.duration_s:g} s; duration_s must "
            f"be at most {_MAX_DURATION_S:g}"
        )
    return replace(outcome, duration_s=max(0.0, outcome.duration_s))


def _finite(reward: float) -> float:
    """Returns a reward. Raises `BrokenEpisode` if the reward would leave its group without advantages."""
    if not abs(reward) <= MAX_REWARD:  # NaN is not either.
        raise BrokenEpisode(
            f"the environment gave the reward {reward:g}; rewards must be from {-MAX_REWARD:g} to {MAX_REWARD:g}"
        )
    return reward


@dataclass(frozen=True)
class PolicyCall:
    """A turn that an agent requests, after messages or after tokens."""

    call_id: str
    messages: tuple[ChatMessage, ...]
    """The messages of the context; empty if `token_ids` is the context."""
    tools: tuple[ToolDefinition, ...]
    token_ids: Int32Array
    max_tokens: int
    """The agent's own limit of tokens; 0 if the agent sets no limit."""
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    is_auxiliary: bool
    """Whether the answer is not trained on."""


@dataclass(frozen=True)
class PolicyAnswer:
    """The policy's answer."""

    message: ChatMessage
    token_ids: Int32Array
    """[T]"""
    logprobs: Float32Array
    """[T]"""
    finish_reason: FinishReason
    num_context_tokens: int
    version: WeightVersion
    """The oldest weights that sampled a token."""


class RefusalReason(StrEnum):
    """The reason why a call is not answered."""

    INVALID = "invalid"
    CONTEXT_FULL = "context_full"
    LIMIT = "limit"
    """No further call of the episode will be answered."""
    PAUSED = "paused"


@dataclass(frozen=True)
class PolicyRefusal:
    """A call that is not answered."""

    reason: RefusalReason
    detail: str
    """A text for people: what is wrong, and how to continue."""
    retry_after_s: float = 0.0


_REASONS = {
    RefusalReason.INVALID: pb.POLICY_REFUSAL_REASON_INVALID,
    RefusalReason.CONTEXT_FULL: pb.POLICY_REFUSAL_REASON_CONTEXT_FULL,
    RefusalReason.LIMIT: pb.POLICY_REFUSAL_REASON_LIMIT,
    RefusalReason.PAUSED: pb.POLICY_REFUSAL_REASON_PAUSED,
}


def call_from_wire(message: pb.PolicyCall) -> PolicyCall:
    """Converts a call. Raises `InvalidArgument`, which names the field, for an invalid field."""
    return PolicyCall(
        message.call_id,
        tuple(map(chat_message_from_wire, message.messages)),
        tuple(map(tool_from_wire, message.tools)),
        int32_from_wire(message.token_ids, "call.token_ids"),
        message.max_tokens,
        tuple(message.stop_token_ids),
        tuple(message.stop_strings),
        message.is_auxiliary,
    )


def reply_to_wire(call_id: str, reply: PolicyAnswer | PolicyRefusal) -> pb.PolicyReply:
    if isinstance(reply, PolicyRefusal):
        refusal = pb.PolicyRefusal(
            reason=_REASONS[reply.reason], detail=reply.detail, retry_after_s=reply.retry_after_s
        )
        return pb.PolicyReply(call_id=call_id, refusal=refusal)
    answer = pb.PolicyAnswer(
        message=chat_message_to_wire(reply.message),
        token_ids=int32_to_wire(reply.token_ids),
        logprobs=float32_to_wire(np.asarray(reply.logprobs, np.float32)),
        finish_reason=finish_reason_to_wire(reply.finish_reason),
        num_context_tokens=reply.num_context_tokens,
        version=version_to_wire(reply.version),
    )
    return pb.PolicyReply(call_id=call_id, answer=answer)
