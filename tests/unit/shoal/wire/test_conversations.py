"""Tools and tool calls as messages: numbers stay what they are, and a call has a status."""

import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.errors import InvalidArgument
from shoal.wire import chat_message_from_wire, chat_message_to_wire, tool_from_wire, tool_to_wire


def test_a_schema_keeps_its_whole_numbers() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "multipleOf": 0.5}}}
    assert tool_from_wire(tool_to_wire(ToolDefinition("guess", "Guesses.", schema))).parameters == schema


def test_a_schema_with_a_number_that_json_lacks_is_refused() -> None:
    message = tool_to_wire(ToolDefinition("guess", "Guesses.", {}))
    message.parameters["minimum"] = float("inf")
    with pytest.raises(InvalidArgument, match="tool guess: parameters"):
        tool_from_wire(message)


def test_a_tool_call_without_a_status_is_refused() -> None:
    sent = ChatMessage("assistant", "", (ToolCall("1", "calc", "{}", ToolCallStatus.OK, "raw", "detail"),))
    message = chat_message_to_wire(sent)
    assert chat_message_from_wire(message) == sent
    message.tool_calls[0].ClearField("status")
    with pytest.raises(InvalidArgument, match=r"tool_calls\.status"):
        chat_message_from_wire(message)
