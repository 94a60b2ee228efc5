"""Messages with arbitrary contents, made from their descriptors."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

MAX_DEPTH = 4
_TEXTS = (
    "", "a", "..", "../../etc/passwd", "/", "x" * 5000, "é\u202e\u0000\ud7ff", "%s%n", "{0}", "None", "nan", "run-1",
    "-1", "'; DROP TABLE groups;--",
    "127.0.0.1:1", "[::1]:2", "localhost:99999", "http://127.0.0.1:1/v1", "step-00000001",
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_BYTES = (b"", b"\x00", b"\x01\x00\x00\x00", b"\x01\x00\x00\x00\x02\x00\x00\x00", b"\xff" * 7, b"\xff\xff\xff\x7f" * 3)
_KEYS = (
    "run", "model", "data", "learner", "grpo", "reward", "sampling", "kl", "name", "path", "sources", "task", "custom",
    "num_steps", "learning_rate", "group_size", "x", "", "__class__", "max_completion_tokens",
)  # fmt: skip
_REPEATED = FieldDescriptor.LABEL_REPEATED if hasattr(FieldDescriptor, "LABEL_REPEATED") else 3


def arbitrary_message(descriptor: Descriptor, rng: random.Random, depth: int = 0) -> Message:
    """Makes a message; `rng` decides all."""
    message: Any = message_factory.GetMessageClass(descriptor)()
    if isinstance(message, Struct):
        for key in rng.sample(_KEYS, rng.randint(0, 4)):
            message[key] = _json_value(rng, depth)
        return message
    for field in descriptor.fields:
        if rng.random() < 0.35:
            continue
        values = [value for value in _values(field, rng, depth) if value is not None]
        _put(message, field, values)
    return message


def _values(field: FieldDescriptor, rng: random.Random, depth: int) -> Iterator[Any]:
    for _ in range(rng.randint(0, 3) if field.is_repeated else 1):
        yield _value(field, rng, depth)


def _put(message: Any, field: FieldDescriptor, values: list[Any]) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        for value in values:
            target = getattr(message, field.name)
            target.add().CopyFrom(value) if field.message_type else target.append(value)
    elif values and field.message_type:
        getattr(message, field.name).CopyFrom(values[0])
    elif values:
        setattr(message, field.name, values[0])


def _value(field: FieldDescriptor, rng: random.Random, depth: int) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return arbitrary_message(field.message_type, rng, depth + 1) if depth < MAX_DEPTH else None
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(_BYTES) if field.type == FieldDescriptor.TYPE_BYTES else rng.choice(_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values] + [99])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(_NUMBERS)
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]
    return rng.choice([number for number in _WHOLE if low <= number <= high])


def _json_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth < MAX_DEPTH else 4)
    if kind == 0:
        return rng.choice(_TEXTS)
    if kind == 1:
        return rng.choice(_NUMBERS)
    if kind == 2:
        return rng.random() < 0.5
    if kind == 3:
        return None
    if kind == 4:
        return [_json_value(rng, depth + 1) for _ in range(rng.randint(0, 2))]
    return {key: _json_value(rng, depth + 1) for key in rng.sample(_KEYS, rng.randint(0, 3))}


def methods(service: str) -> list[Any]:
    """Returns the descriptors of a service's rpcs, by its full name."""
    return list(descriptor_pool.Default().FindServiceByName(service).methods)
