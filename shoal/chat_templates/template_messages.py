"""Messages in the form that chat templates take."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.conversation import ChatMessage, ToolCall, openai_call
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json


def for_template(message: ChatMessage) -> dict[str, Any]:
    """Returns a message for the template. Raises `InvalidArgument` if the arguments of a call are not a JSON object,
    since an agent's client may send any text."""
    calls = [openai_call(call, _arguments_of(call)) for call in message.tool_calls]
    named = {"tool_call_id": message.tool_call_id, "name": message.name, "tool_calls": calls}
    return {"role": message.role, "content": message.content} | {key: value for key, value in named.items() if value}


def _arguments_of(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = parse_json(call.arguments_json or "{}")
        if not isinstance(arguments, dict):
            raise TypeError
        json.dumps(arguments, ensure_ascii=False).encode()  # Fails for lone surrogates.
    except (ValueError, TypeError):
        raise InvalidArgument(
            f"the arguments of the call of {call.name} must be a JSON object that is not nested deeply"
        ) from None
    return arguments


def with_texts_of_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with the arguments of calls as JSON text, which a few templates require; empty if there are
    no calls."""
    if not any("tool_calls" in message for message in messages):
        return []
    changed = [dict(message) for message in messages]
    for message in changed:
        if "tool_calls" in message:
            message["tool_calls"] = [*map(_with_text, message["tool_calls"])]
    return changed


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
