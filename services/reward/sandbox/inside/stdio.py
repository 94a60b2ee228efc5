"""Comparison of outputs."""

import re
from decimal import Decimal

# Numbers as programs print them. With zeros in front, as in "0011", it might be a number or a text.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_DIGITS = re.compile(r"[0-9]+")


def same_output(got: str, wanted: str) -> bool:
    """Compares two outputs line by line, without white space around the lines and the whole; numbers by value."""
    got_lines, wanted_lines = _lines(got), _lines(wanted)
    return len(got_lines) == len(wanted_lines) and all(
        one == other or _same_numbers(one.split(), other.split())
        for one, other in zip(got_lines, wanted_lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(one: list[str], other: list[str]) -> bool:
    """Compares two lines of numbers, ignoring white space between them. Numbers with zeros in front are texts."""
    return len(one) == len(other) and all(_same_number(*pair) for pair in zip(one, other, strict=True))


def _same_number(one: str, other: str) -> bool:
    if one == other:
        return _NUMBER.fullmatch(one) is not None or _DIGITS.fullmatch(one) is not None
    is_pair = _NUMBER.fullmatch(one) is not None and _NUMBER.fullmatch(other) is not None
    return is_pair and Decimal(one) == Decimal(other)
