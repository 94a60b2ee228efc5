"""Comparison of outputs."""

from decimal import Decimal, InvalidOperation


def same_output(got: str, wanted: str) -> bool:
    """Compares two outputs line by line, ignoring white space around lines and around the whole; numbers by value."""
    got_lines, wanted_lines = _lines(got), _lines(wanted)
    return len(got_lines) == len(wanted_lines) and all(
        one == other or _same_numbers(one, other) for one, other in zip(got_lines, wanted_lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(one: str, other: str) -> bool:
    try:
        return [Decimal(word) for word in one.split()] == [Decimal(word) for word in other.split()]
    except InvalidOperation:
        return False
