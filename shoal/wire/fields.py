"""Errors about the fields of messages."""

from collections.abc import Mapping
from typing import Any, TypeVar

from shoal.errors import FieldViolation, InvalidArgument

_Value = TypeVar("_Value")


def invalid(field: str, description: str) -> InvalidArgument:
    """Makes the error for one field of a request."""
    return InvalidArgument(f"{field}: {description}", violations=[FieldViolation(field, description)])


def value_of(values: Mapping[Any, _Value], number: int, field: str) -> _Value:
    """Reads a value of an enum. Raises `InvalidArgument`, with the field, when it is not set or unknown."""
    if number not in values:
        raise invalid(field, f"must be set to a known value (given: {number})")
    return values[number]
