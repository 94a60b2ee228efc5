"""Tools and tool calls as messages: numbers stay what they are, and a call has a status."""

import json
import subprocess
import sys

import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.errors import InvalidArgument
from shoal.wire import (
    chat_message_from_wire,
    chat_message_to_wire,
    struct_from_wire,
    struct_to_wire,
    tool_from_wire,
    tool_to_wire,
)


def test_a_tool_is_written_in_one_order_in_every_process() -> None:
    """A prompt has it, and the keys of a Struct come in another order in each process."""
    path, view = {"type": "string", "description": "of the file"}, {"type": "array", "items": {"type": "integer"}}
    command = {"type": "string", "description": "what to do", "enum": ["view", "create"]}
    schema = {
        "type": "object",
        "properties": {"path": path, "command": command, "lines": view, "view": view},
        "required": ["path", "command"],
        "additionalProperties": False,
    }
    program = (
        "import json, sys; from shoal.conversation import ToolDefinition as T; from shoal.wire import *\n"
        "print(json.dumps(tool_from_wire(tool_to_wire(T('edit', '', json.load(sys.stdin)))).parameters))"
    )
    for _ in range(3):
        command_line = [sys.executable, "-c", program]
        done = subprocess.run(command_line, input=json.dumps(schema), capture_output=True, text=True, check=True)
        assert done.stdout.strip() == json.dumps(schema)


def test_a_task_is_read_in_the_order_of_its_names() -> None:
    task: dict[str, object] = {name: {"b": 1, "a": [{"d": 1, "c": 2}]} for name in "dbca"}
    wanted = {name: {"a": [{"c": 2, "d": 1}], "b": 1} for name in "abcd"}
    assert json.dumps(struct_from_wire(struct_to_wire(task), "task")) == json.dumps(wanted)


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
