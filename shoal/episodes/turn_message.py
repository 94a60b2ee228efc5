"""A turn of the policy as a message: its text and its tool calls."""

from collections.abc import Sequence

from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import Parser

_NUM_LAST_TOKENS = 16
"""A limit above the number of tokens in the opening mark of a thought and the space after the mark."""


def opened_by(renderer: TurnRenderer, before: Int32Array) -> str:
    """Returns the opening mark of the thought in which the tokens before a turn end; empty outside of a thought."""
    return renderer.opened_thought(before[-_NUM_LAST_TOKENS:].tolist())


def turn_message(
    renderer: TurnRenderer,
    parse: Parser,
    tools: Sequence[ToolDefinition],
    number: int,
    *,
    before: Int32Array,
    sampled: Int32Array,
    withheld: Sequence[ToolDefinition] = (),
) -> ChatMessage:
    """Returns the message of turn `number` (from 1), given the tokens `before` the turn and the tokens `sampled` in the
    turn. Calls of `withheld` tools, which the prompt does not offer, are found and refused.

    If the chat template begins the turn inside a thought, the parser is told, since text in a thought is no call. A
    turn that no result can follow has no calls.
    """
    token_ids = sampled.tolist()
    text = renderer.sampled_text(token_ids)
    if renderer.is_final(token_ids):
        return ChatMessage("assistant", text)
    thought = opened_by(renderer, before)
    parsed = parse(thought + text, tools, number, withheld)
    content = parsed.content.removeprefix(thought)
    return ChatMessage("assistant", content.strip() if parsed.calls else content, parsed.calls)
