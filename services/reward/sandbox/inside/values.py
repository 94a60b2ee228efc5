"""Values as JSON, between examiner and subject. Plain data is copied; any other object stays in its own process.
Decoding cannot run code, since only the types below exist."""

import base64
import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

Reference = Callable[[Any], dict[str, Any]]
"""Returns the name under which the other process knows an object that cannot be copied."""

_DICTS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda items: defaultdict(None, items),
}
_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_TEXTS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    # Hexadecimal is exact, and linear in the number of digits.
    "int": (hex, lambda text: int(text, 16)),
    "float": (float.hex, float.fromhex),
    "bytes": (lambda data: base64.b64encode(data).decode("ascii"), base64.b64decode),
    "bytearray": (lambda data: base64.b64encode(data).decode("ascii"), lambda text: bytearray(base64.b64decode(text))),
    "Decimal": (str, Decimal),
    "date": (datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "time": (datetime.time.isoformat, datetime.time.fromisoformat),
}
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "range": lambda parts: range(*parts),
    "Fraction": lambda parts: Fraction(*(int(part, 16) for part in parts)),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "constant": {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}.__getitem__,
}
_TEXT_TYPES: dict[Any, str] = {
    int: "int", float: "float", bytes: "bytes", bytearray: "bytearray", Decimal: "Decimal", datetime.date: "date",
    datetime.datetime: "datetime", datetime.time: "time",
}  # fmt: skip
_DICT_TYPES: dict[Any, str] = {dict: "dict", Counter: "Counter", OrderedDict: "OrderedDict", defaultdict: "defaultdict"}
_SEQUENCE_TYPES: dict[Any, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
_BASES = (str, int, float, complex, bytes, tuple, list, dict, set, frozenset)


def encode(value: Any, reference: Reference) -> Any:
    """Converts a value to JSON. Raises `RecursionError` for a value that contains itself."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is list:
        return [encode(item, reference) for item in value]
    if (name := _TEXT_TYPES.get(kind)) is not None:
        return {name: _TEXTS[name][0](value)}
    if (name := _SEQUENCE_TYPES.get(kind)) is not None:
        return {name: [encode(item, reference) for item in value]}
    if (name := _DICT_TYPES.get(kind)) is not None:
        return {name: [[encode(key, reference), encode(item, reference)] for key, item in value.items()]}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is Fraction:
        return {"Fraction": [hex(value.numerator), hex(value.denominator)]}
    if kind is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if value is NotImplemented or value is Ellipsis:
        return {"constant": repr(value)}
    return reference(value)


def plain_copy(value: Any) -> Any:
    """Copies a value of a class that is derived from a plain class to the plain class; returns None for other values.
    Only the plain class's own methods read the value."""
    for base in _BASES:
        if isinstance(value, base):
            return _as_base(base, value)
    return None


def _as_base(base: Any, value: Any) -> Any:
    if base is str:
        return str.__str__(value)
    if base is int:
        return int.__int__(value)
    if base is float:
        return float.__float__(value)
    if base is complex:
        return complex(complex.__pos__(value))
    if base is bytes:
        return bytes(bytes.__iter__(value))
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))


def decode(data: Any, dereference: Callable[[dict[str, Any]], Any]) -> Any:
    """Converts the JSON of `encode` back. Raises `ValueError`, `TypeError` or `KeyError` for any other JSON."""
    if data is None or isinstance(data, bool | str):
        return data
    if isinstance(data, list):
        return [decode(item, dereference) for item in data]
    if not isinstance(data, dict):
        raise ValueError(f"a bare {type(data).__name__}")
    if len(data) == 1:
        [(name, body)] = data.items()
        if name in _TEXTS:
            return _TEXTS[name][1](body)
        if name in _SEQUENCES:
            return _SEQUENCES[name](decode(item, dereference) for item in body)
        if name in _DICTS:
            items = [(decode(key, dereference), decode(item, dereference)) for key, item in body]
            return _DICTS[name](dict(items))
        if name in _MAKERS:
            return _MAKERS[name](body)
    return dereference(data)
