"""Converters from an agent's calls to requests of a generator, and from answers to what the agent reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.coordinator.rollout.episodes.call_tree import CallTree, Node
from services.coordinator.rollout.episodes.messages import PolicyCall
from services.coordinator.rollout.episodes.stage import Stages
from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage, ToolCall
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import stop_strings
from shoal.errors import InvalidArgument
from shoal.rollout import SamplingParams


@dataclass(frozen=True)
class CallPlace:
    """The place where a call continues: after a turn, or, without a turn, at the beginning of a segment."""

    node: Node | None
    new_ids: Int32Array
    """Tokens after the turn."""
    new_messages: tuple[ChatMessage, ...]
    renderer: TurnRenderer

    @property
    def context(self) -> Int32Array:
        return self.new_ids if self.node is None else np.concatenate([self.node.token_ids, self.new_ids])


def find_node(tree: CallTree, call: PolicyCall, digests: Sequence[bytes]) -> tuple[Node | None, int]:
    """Returns the turn that a call continues, and the number of its messages, or tokens, that are not new.

    `digests` has the digests of its messages. Raises `InvalidArgument` for a call that makes no sense.
    """
    if len(call.token_ids):
        node = tree.behind_tokens(call.token_ids)
        return node, 0 if node is None else node.end
    if not call.messages:
        raise InvalidArgument("the call has neither messages nor tokens")
    if call.messages[-1].role == "assistant":
        raise InvalidArgument("messages: the last one must not be the policy's own: let another follow it")
    node, num_known = tree.behind_messages(digests)
    if any(message.role == "assistant" for message in call.messages[num_known:]):
        return None, 0  # Words of somebody else, or the policy's words in another form.
    return node, num_known


def place_of(stages: Stages, call: PolicyCall, node: Node | None, num_known: int) -> CallPlace:
    """Renders the new part of a call. Call it in `Stages.beside`. Raises `InvalidArgument`."""
    renderer = stages.renderer_for(call.tools)
    if len(call.token_ids):
        return CallPlace(node, call.token_ids[num_known:], (), renderer)
    new = call.messages[num_known:]
    if node is None:
        return CallPlace(None, np.array(renderer.beginning(call.messages), np.int32), call.messages, renderer)
    token_ids = renderer.observation(int(node.token_ids[-1]), node.calls, new)
    return CallPlace(node, np.array(token_ids, np.int32), new, renderer)


def sampling_of(
    own: SamplingParams, tool_parser: str, call: PolicyCall, place: CallPlace, num_left: int
) -> SamplingParams:
    """Returns the settings of a turn: the run's `own` settings, whatever the agent wants. Raises `InvalidArgument`."""
    unknown = [text for text in call.stop_strings if text not in own.stop_strings]
    if unknown:
        raise InvalidArgument(f"stop: {unknown[0]!r:.60} is not among the run's sampling.stop_strings")
    return replace(
        own,
        max_completion_tokens=num_left,
        stop_token_ids=tuple({*own.stop_token_ids, place.renderer.end_of_turn, *call.stop_token_ids}),
        stop_strings=tuple(dict.fromkeys((*own.stop_strings, *stop_strings(tool_parser, call.tools)))),
    )


def readable(message: ChatMessage) -> ChatMessage:
    """Returns an answer for its client, with the calls that have a name and arguments. Other calls stay text."""
    calls = tuple(call for call in message.tool_calls if _is_readable(call))
    if len(calls) == len(message.tool_calls):
        return message
    unreadable = [call.raw for call in message.tool_calls if not _is_readable(call)]
    return replace(message, content="\n".join(filter(None, (message.content, *unreadable))), tool_calls=calls)


def _is_readable(call: ToolCall) -> bool:
    try:
        return bool(call.name) and isinstance(json.loads(call.arguments_json), dict)
    except ValueError:
        return False
