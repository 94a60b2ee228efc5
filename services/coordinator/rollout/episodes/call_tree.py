"""The calls of an agent as a tree, which finds the earlier turn that a context continues.

A context of messages continues the longest known conversation; a context of tokens, the most tokens. Sampled tokens are
kept unchanged. The first context that continues a turn is the next turn of its segment. Any other begins a segment,
whose prompt is everything before it: each turn is in one segment only.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from services.coordinator.rollout.episodes.transcript import Transcript
from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage, ToolCall, ToolDefinition
from shoal.parsing import parse_json


@dataclass(eq=False)
class Node:
    """A turn that the policy has sampled."""

    segment: Transcript
    turn: int
    """The place among the turns of the segment, from 0."""
    end: int
    """Tokens of the segment up to the turn's last sampled token, including its prompt."""
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
        """Returns the turn that a conversation continues, and the number of known messages.

        `digests` has the digest of the conversation up to each of its messages.
        """
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
        """Adds a turn, with the digest of the conversation up to its answer, if the context is messages."""
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
    """Returns what identifies a message: clients trim the policy's text, rewrite its arguments, and change ids of
    calls."""
    if message.role != "assistant":
        return [message.role, message.content, message.name]
    calls = [[call.name, _value(call.arguments_json or "{}")] for call in message.tool_calls]
    return [message.role, message.content.strip(), json.dumps(calls, sort_keys=True)]


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
