"""Errors about the fields of messages."""

from shoal.errors import FieldViolation, InvalidArgument


def invalid(field: str, description: str) -> InvalidArgument:
    """Makes the error for one field of a request."""
    return InvalidArgument(f"{field}: {description}", violations=[FieldViolation(field, description)])
