"""The calls of an agent: their tree, their conversion to requests of a generator, and answers in the agent's form.

A context of messages continues the longest known conversation. A context of tokens continues the known context that
shares the most tokens. Sampled tokens are kept unchanged. The first context that continues a turn is the next turn of
its segment. Any other context begins a segment, with the context as the prompt of the segment. So each turn is in one
segment only.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from services.coordinator.rollout.episodes.messages import PolicyCall
from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.episodes.transcript import Transcript
from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage, ToolCall, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import stop_strings
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.rollout import SamplingParams


@dataclass(eq=False)
class Node:
    """A turn that the policy has sampled."""

    segment: Transcript
    turn: int
    """The place among the turns of the segment, from 0."""
    end: int
    """Number of tokens of the segment up to the turn's last sampled token, including the prompt of the segment."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls of the answer."""
    is_continued: bool = False
    """Whether a later turn of its segment exists or is in flight."""

    @property
    def token_ids(self) -> Int32Array:
        """The whole context, up to the last token of the turn."""
        return self.segment.context[: self.end]


@dataclass
class CallTree:
    """The turns of an episode that were sampled for an agent."""

    segments: list[Transcript] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)
    _by_history: dict[bytes, list[Node]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens after the prompts of all segments."""
        return sum(segment.num_tokens for segment in self.segments)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(segment.prompt_ids) for segment in self.segments)

    def behind_messages(self, digests: Sequence[bytes]) -> tuple[Node | None, int]:
        """Returns the turn that a conversation with these `digests_of` continues, and the number of known messages."""
        found: Node | None = None
        num_messages = 0
        for number, digest in enumerate(digests, start=1):
            if nodes := self._by_history.get(digest):
                found = next((node for node in nodes if not node.is_continued), nodes[-1])
                num_messages = number
        return found, num_messages

    def behind_tokens(self, token_ids: Int32Array) -> Node | None:
        """Returns the turn that a context continues."""
        shared = {id(segment): _num_shared(segment.context, token_ids) for segment in self.segments}
        behind = [node for node in self._nodes if node.end <= shared[id(node.segment)]]
        return max(behind, key=lambda node: (node.end, not node.is_continued), default=None)

    def add(self, node: Node, digest: bytes | None = None) -> None:
        """Adds a turn. If the context is messages, `digest` is of the conversation up to the turn's answer."""
        self._nodes.append(node)
        if digest is not None:
            self._by_history.setdefault(digest, []).append(node)


def _num_shared(first: Int32Array, second: Int32Array) -> int:
    """Counts the tokens of the shared prefix."""
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def digests_of(tools: Sequence[ToolDefinition], messages: Sequence[ChatMessage]) -> Iterator[bytes]:
    """Yields the digest of a conversation up to each of its messages."""
    digest = hashlib.sha256(json.dumps([asdict(tool) for tool in tools], sort_keys=True).encode())
    for message in messages:
        digest.update(json.dumps(_canonical(message)).encode())
        yield digest.digest()


def _canonical(message: ChatMessage) -> list[Any]:
    """Returns the parts that identify a message: clients trim text, rewrite arguments, and change ids of calls."""
    if message.role != "assistant":
        return [message.role, message.content, message.name]
    calls = [[call.name, _value(call.arguments_json or "{}")] for call in message.tool_calls]
    return [message.role, message.content.strip(), json.dumps(calls, sort_keys=True)]


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


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
    """Returns the turn that a call continues, and how many of the call's messages or tokens are not new.

    `digests` has the digests of the call's messages. Raises `InvalidArgument` for an invalid call.
    """
    if len(call.token_ids):
        node = tree.behind_tokens(call.token_ids)
        return node, 0 if node is None else node.end
    if not call.messages:
        raise InvalidArgument("the call has neither messages nor tokens: send one of them as the context")
    if call.messages[-1].role == "assistant":
        raise InvalidArgument("messages: the last message must not have the role assistant; add a message after it")
    node, num_known = tree.behind_messages(digests)
    if any(message.role == "assistant" for message in call.messages[num_known:]):
        return None, 0  # Words of somebody else, or the policy's words in another form.
    return node, num_known


def place_of(stages: Stages, call: PolicyCall, node: Node | None, num_known: int) -> CallPlace:
    """Renders the new part of a call; run it in `Stages.beside`. Raises `InvalidArgument` if it cannot be rendered."""
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
    """Returns the settings of a turn: the run's `own`. Raises `InvalidArgument` for stop strings that the run lacks."""
    unknown = [text for text in call.stop_strings if text not in own.stop_strings]
    if unknown:
        raise InvalidArgument(f"stop: {unknown[0]!r:.60} is not among the run's sampling.stop_strings: add it there")
    return replace(
        own,
        max_completion_tokens=num_left,
        stop_token_ids=tuple({*own.stop_token_ids, *place.renderer.ends_of_turn, *call.stop_token_ids}),
        stop_strings=tuple(dict.fromkeys((*own.stop_strings, *stop_strings(tool_parser, call.tools)))),
    )


def readable(message: ChatMessage) -> ChatMessage:
    """Returns an answer for the agent's client, with the calls that have a name and arguments; others stay text."""
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
