"""Calls of the policy by an agent, and the replies to them."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shoal.arrays import Float32Array, Int32Array
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.rollout import FinishReason, WeightVersion
from shoal.v1 import environment_pb2 as pb
from shoal.wire import finish_reason_to_wire, version_to_wire
from shoal.wire.arrays import float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire, tool_from_wire


@dataclass(frozen=True)
class PolicyCall:
    """A turn that an agent requests, after messages or after tokens."""

    call_id: str
    messages: tuple[ChatMessage, ...]
    """The context; empty if `token_ids` is the context."""
    tools: tuple[ToolDefinition, ...]
    token_ids: Int32Array
    max_tokens: int
    """The agent's own limit; 0 if it sets none."""
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
    """Raises `InvalidArgument` that names the field."""
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
