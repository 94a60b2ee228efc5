"""The JSON form of messages, in which Shoal prints and stores messages of the contract.

The form is the JSON of proto3, but complete and with numbers as numbers. Every field is present under its name in the
contract, and is null if absent. 64-bit integers are numbers, timestamps always have six decimals, and maps are sorted.
Any protobuf library can parse this form.
"""

import base64
import json
import math
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp


def json_form(message: Message) -> dict[str, Any]:
    """Returns a message as plain values, ready for `json.dumps`."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def json_line(message: Message) -> str:
    """Returns a message as one line of JSON, in ASCII, so that no character in it can end the line."""
    return json.dumps(json_form(message))


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        item = entry.fields_by_name["value"]
        return {str(key): _value(item, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return _message(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return _number(value)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name else value
    return value


def _message(message: Message) -> Any:
    """Returns a nested message. Messages of `google.protobuf` have special forms."""
    if isinstance(message, Timestamp):
        return message.ToDatetime().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(message, Duration):
        return message.ToJsonString()
    if isinstance(message, Struct):
        return {key: _message(message.fields[key]) for key in sorted(message.fields)}
    if isinstance(message, ListValue):
        return [_message(item) for item in message.values]
    if isinstance(message, Value):
        return _any_value(message)
    return json_form(message)


def _any_value(message: Value) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    if isinstance(value, Message):
        return _message(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # A Struct has no integers, so counts would get a ".0".
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> float | str:
    """Returns a number, or the name of a number that JSON cannot represent."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
