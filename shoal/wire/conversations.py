"""Messages of conversations, their tool calls, and the tools, as protobuf messages."""

from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.v1 import environment_pb2, rollout_pb2
from shoal.wire.fields import invalid, value_of

_STATUS_TO_WIRE = {
    ToolCallStatus.OK: rollout_pb2.TOOL_CALL_STATUS_OK,
    ToolCallStatus.MALFORMED: rollout_pb2.TOOL_CALL_STATUS_MALFORMED,
    ToolCallStatus.UNKNOWN_TOOL: rollout_pb2.TOOL_CALL_STATUS_UNKNOWN_TOOL,
    ToolCallStatus.BAD_ARGUMENTS: rollout_pb2.TOOL_CALL_STATUS_BAD_ARGUMENTS,
}
_STATUS_FROM_WIRE = {number: status for status, number in _STATUS_TO_WIRE.items()}
_FIRST_KEYWORDS = ("type", "description", "enum", "properties", "required")


def chat_message_to_wire(message: ChatMessage) -> rollout_pb2.ChatMessage:
    return rollout_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=map(_call_to_wire, message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def chat_message_from_wire(message: rollout_pb2.ChatMessage) -> ChatMessage:
    """Reads a message. Raises `InvalidArgument` for a tool call without a status."""
    return ChatMessage(
        message.role,
        message.content,
        tuple(map(_call_from_wire, message.tool_calls)),
        message.tool_call_id,
        message.name,
    )


def _call_to_wire(call: ToolCall) -> rollout_pb2.ToolCall:
    return rollout_pb2.ToolCall(
        id=call.id,
        name=call.name,
        arguments_json=call.arguments_json,
        status=_STATUS_TO_WIRE[call.status],
        raw=call.raw,
        detail=call.detail,
    )


def _call_from_wire(message: rollout_pb2.ToolCall) -> ToolCall:
    status = value_of(_STATUS_FROM_WIRE, message.status, "message.tool_calls.status")
    return ToolCall(message.id, message.name, message.arguments_json, status, message.raw, message.detail)


def tool_to_wire(tool: ToolDefinition) -> environment_pb2.ToolDefinition:
    return environment_pb2.ToolDefinition(
        name=tool.name, description=tool.description, parameters=struct_to_wire(tool.parameters)
    )


def tool_from_wire(message: environment_pb2.ToolDefinition) -> ToolDefinition:
    """Reads a tool. The schema has the same order in every process, since prompts are rendered with the schema.

    Raises `InvalidArgument` for a schema with a number that JSON does not have.
    """
    schema = struct_from_wire(message.parameters, f"tool {message.name}: parameters")
    return ToolDefinition(message.name, message.description, _in_order(schema))


def _in_order(schema: Any) -> Any:
    """Orders a schema in the usual way: the type first, and required parameters before the others."""
    if isinstance(schema, list):
        return [_in_order(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    first = [name for name in _FIRST_KEYWORDS if name in schema]
    ordered = {name: _in_order(schema[name]) for name in dict.fromkeys((*first, *schema))}
    properties, required = ordered.get("properties"), ordered.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        first = [name for name in required if isinstance(name, str) and name in properties]
        ordered["properties"] = {name: properties[name] for name in dict.fromkeys((*first, *properties))}
    return ordered


def struct_to_wire(values: dict[str, object]) -> Struct:
    return json_format.ParseDict(values, Struct())


def struct_from_wire(message: Struct, field: str) -> dict[str, object]:
    """Returns a JSON object with its keys in the order of their names; whole numbers become integers.

    Each process orders Struct keys differently. Raises `InvalidArgument`, with the field, for numbers not in JSON.
    """
    try:
        values = json_format.MessageToDict(message)
    except ValueError:
        raise invalid(field, "must have only finite numbers") from None
    return {name: _plain(values[name]) for name in sorted(values)}


def _plain(value: object) -> object:
    """Converts whole numbers to int. A Struct has no integers, so a count would be a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    return [_plain(item) for item in value] if isinstance(value, list) else value
