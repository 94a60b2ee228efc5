"""Turns of a policy that calls tools, and what comes back."""

import json
from typing import Any

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.environment import Observation, Turn


def turn(*calls: tuple[str, dict[str, Any]], status: ToolCallStatus = ToolCallStatus.OK) -> Turn:
    detail = "" if status is ToolCallStatus.OK else "It is bad."
    made = [
        ToolCall(f"call-1-{number}", name, json.dumps(arguments), status, "raw", detail)
        for number, (name, arguments) in enumerate(calls, start=1)
    ]
    return Turn(1, "", tuple(made))


def texts(observation: Observation) -> list[str]:
    assert isinstance(observation.messages, list)
    for number, message in enumerate(observation.messages, start=1):
        assert isinstance(message, ChatMessage)
        assert (message.role, message.tool_call_id) == ("tool", f"call-1-{number}"), message
    return [message.content for message in observation.messages]  # type: ignore[union-attr]
