"""Conversations: messages, and the tool calls in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ToolCallStatus(StrEnum):
    """The result of a search for a tool call."""

    OK = "ok"
    """A call of a known tool with arguments that fit its schema."""
    MALFORMED = "malformed"
    """The text looks like a call but cannot be read."""
    UNKNOWN_TOOL = "unknown_tool"
    """The tool is not among those that the prompt offers."""
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments do not fit the tool's schema."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call that was found in the policy's sampled text."""

    id: str
    """The id of the call, which is unique in the episode."""
    name: str
    """The tool's name; empty if the name could not be read."""
    arguments_json: str
    """The arguments as a JSON object; empty if the arguments could not be read."""
    status: ToolCallStatus
    raw: str
    """The text from which the call was read."""
    detail: str = ""
    """The fault of the call, for people and for the policy."""


@dataclass(frozen=True)
class ToolDefinition:
    """A tool that the policy may call."""

    name: str
    description: str
    """The tool's purpose, for the policy."""
    parameters: dict[str, Any]
    """JSON schema of the tool's arguments, an object."""


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    """The role of the speaker, for example "user"."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of an assistant's turn; `content` does not contain them."""
    tool_call_id: str = ""
    """In a tool's turn, the id of the call that the turn answers."""
    name: str = ""
    """In a tool's turn, the name of the tool; in any other turn, the name of the speaker."""


def words_of(message: ChatMessage) -> str:
    """Renders a message for people: its content, and the calls as the policy wrote them."""
    return "\n".join(part for part in (message.content, *(call.raw for call in message.tool_calls)) if part)


def question_of(messages: Sequence[ChatMessage]) -> str:
    """Renders a conversation for people: a single message unchanged, several messages as lines of "role: content"."""
    if len(messages) == 1:
        return words_of(messages[0])
    return "\n".join(f"{message.role}: {words_of(message)}" for message in messages)


def openai_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Returns a tool in the form of OpenAI's requests, which chat templates also take."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def openai_call(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """Returns a call for OpenAI's messages (`arguments` is JSON text) or for chat templates (an object)."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
