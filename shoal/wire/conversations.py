"""Messages of conversations, their tool calls, and the tools, as messages."""

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.v1 import environment_pb2, rollout_pb2
from shoal.wire.fields import invalid

_STATUS_TO_WIRE = {
    ToolCallStatus.OK: rollout_pb2.TOOL_CALL_STATUS_OK,
    ToolCallStatus.MALFORMED: rollout_pb2.TOOL_CALL_STATUS_MALFORMED,
    ToolCallStatus.UNKNOWN_TOOL: rollout_pb2.TOOL_CALL_STATUS_UNKNOWN_TOOL,
    ToolCallStatus.BAD_ARGUMENTS: rollout_pb2.TOOL_CALL_STATUS_BAD_ARGUMENTS,
}
_STATUS_FROM_WIRE = {number: status for status, number in _STATUS_TO_WIRE.items()}


def chat_message_to_wire(message: ChatMessage) -> rollout_pb2.ChatMessage:
    return rollout_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=map(_call_to_wire, message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def chat_message_from_wire(message: rollout_pb2.ChatMessage) -> ChatMessage:
    """Raises `InvalidArgument` for a tool call without a status."""
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
    status = _STATUS_FROM_WIRE.get(message.status)
    if status is None:
        raise invalid("message.tool_calls.status", f"must be set (given: {message.status})")
    return ToolCall(message.id, message.name, message.arguments_json, status, message.raw, message.detail)


def tool_to_wire(tool: ToolDefinition) -> environment_pb2.ToolDefinition:
    return environment_pb2.ToolDefinition(
        name=tool.name, description=tool.description, parameters=struct_to_wire(tool.parameters)
    )


def tool_from_wire(message: environment_pb2.ToolDefinition) -> ToolDefinition:
    """Raises `InvalidArgument` for a schema with a number that JSON does not have."""
    return ToolDefinition(
        message.name, message.description, struct_from_wire(message.parameters, f"tool {message.name}: parameters")
    )


def struct_to_wire(values: dict[str, object]) -> Struct:
    return json_format.ParseDict(values, Struct())


def struct_from_wire(message: Struct, field: str) -> dict[str, object]:
    """Returns an object of JSON; whole numbers become integers.

    Raises `InvalidArgument`, which names the field, for numbers that JSON does not have.
    """
    try:
        return {name: _whole(value) for name, value in json_format.MessageToDict(message).items()}
    except ValueError:
        raise invalid(field, "must have finite numbers alone") from None


def _whole(value: object) -> object:
    """A Struct has no integers: without this, a count would be a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value
