"""JSON in an answer: its place, and its values with numbers as they are written."""

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from services.reward.common.text import last_between

_FENCE = re.compile(r"`{3,}|(?:(?<=\n)|\A)~{3,}")
_TAG = re.compile(r"[ \t]*[\w+.#-]*")
_SPACES = re.compile(r"\s*")
_BYTE_ORDER_MARK = "\ufeff"
_MAX_FENCES = 1000
"""Maximum number of fences whose blocks are read one after the other. Reading a block takes linear time."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_MAX_DEPTH = 500
"""Maximum number of nested levels. Python's own limit differs between its versions."""
_MAX_DIGITS = 10_000
"""Maximum number of digits of a whole number that is computed, which takes some milliseconds."""
_MAX_EXPONENT = 10_000
_PLAIN_DIGITS = 4300
"""Maximum number of digits of a whole number that Python converts to text and back."""


class NumberTooLarge(Exception):
    """The value of a number is not computed: it is beyond a double, or has too many digits."""


def json_part(answer: str) -> str:
    """Returns the JSON of an answer: the whole answer if it is JSON or has no fenced block, else its last fenced block.
    A fence inside a string of the JSON does not end a block."""
    text = answer.strip().removeprefix(_BYTE_ORDER_MARK).lstrip()
    if _value_end(text, 0) == len(text):
        return text
    block = _last_block(text)
    return text if block is None else block.strip()


def exact_json(text: str, **hooks: Any) -> Any:
    """Returns the values of JSON. A number becomes an `int` or a `Decimal`, exactly as it is written; 3.0 becomes 3.

    Of equal keys the last counts, unless the `hooks` of `json.loads` say otherwise. Raises `ValueError` for text that
    is not JSON, including NaN and Infinity, and `RecursionError` for deep nesting. Raises `NumberTooLarge` for a number
    that is too large, unless the number is the whole text and a `Decimal` can hold it.
    """
    if _is_too_deep(text):
        raise RecursionError
    too_large: list[str] = []

    def read(number: str, value: Callable[[str], Any]) -> Any:
        try:
            return value(number)
        except NumberTooLarge:
            too_large.append(number)
            return None

    values = json.loads(
        text,
        parse_int=lambda number: read(number, _whole),
        parse_float=lambda number: read(number, _fraction),
        parse_constant=_refuse,
        **hooks,
    )
    if too_large and text.strip() == too_large[0]:
        return _decimal(too_large[0])
    if too_large:
        raise NumberTooLarge(f"{too_large[0]:.20}")
    return values


def is_json(text: str) -> bool:
    """Returns whether a text is JSON. JSON nested deeper than 500 levels is not."""
    if _is_too_deep(text):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _is_too_deep(text: str) -> bool:
    """Returns whether JSON, which may be cut off, is nested too deeply."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return False
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH


class _Decimal(Decimal):
    """A number that messages show as it is written."""

    __repr__ = Decimal.__str__


class _LongInteger(int):
    """A whole number that Python does not convert to text."""

    def __repr__(self) -> str:
        return f"a number of {self.bit_length()} bits"

    __str__ = __repr__


def _whole(number: str) -> int:
    if len(number) <= _PLAIN_DIGITS:
        return int(number)
    if len(number) > _MAX_DIGITS:
        raise NumberTooLarge
    return _LongInteger(Decimal(number))


def _fraction(number: str) -> int | Decimal:
    if float(number) in (float("inf"), float("-inf")) or len(number) > _MAX_DIGITS:
        raise NumberTooLarge
    value = _decimal(number)
    return int(value) if value == value.to_integral_value() else value


def _decimal(number: str) -> Decimal:
    try:
        value = _Decimal(number)
    except InvalidOperation:  # Its exponent has too many digits.
        raise NumberTooLarge(f"{number:.20}") from None
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        raise NumberTooLarge(f"{number:.20}")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


def _value_end(text: str, start: int) -> int:
    """Returns the end of the JSON value that begins at `start`; -1 if none begins there."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def _last_block(text: str) -> str | None:
    """Returns the last block between fences, without its tag; None if there is no block."""
    if text.count("```") + text.count("~~~") > _MAX_FENCES:
        return last_between(text, "```", "```")
    block, position = None, 0
    while opening := _FENCE.search(text, position):
        found = _json_block(text, opening) or _plain_block(text, opening)
        if found is None:
            break
        block, position = found
    return block


def _json_block(text: str, opening: re.Match[str]) -> tuple[str, int] | None:
    """Returns a block of one JSON value, and the end of its closing fence; None for any other block."""
    for start in {opening.end(), _end_of(_TAG, text, opening.end())}:
        begin = _end_of(_SPACES, text, start)
        end = _value_end(text, begin)
        closing = _end_of(_SPACES, text, end) if end >= 0 else end
        if end >= 0 and text.startswith(opening[0], closing):
            return text[begin:end], closing + len(opening[0])
    return None


def _plain_block(text: str, opening: re.Match[str]) -> tuple[str, int] | None:
    """Returns any block and the end of its closing fence; None if it is cut off. If the opening fence ends its line, a
    closing fence at the start of a line is preferred."""
    fence, start = opening[0], opening.end()
    tag_end = _end_of(_TAG, text, start)
    closing = -1
    if text[tag_end : tag_end + 1] in ("\n", "\r"):
        start, closing = tag_end, text.find(f"\n{fence}", tag_end) + 1
    closing = closing if closing > 0 else text.find(fence, start)
    return (text[start:closing], closing + len(fence)) if closing >= 0 else None


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Returns the end of a match of a pattern that also matches the empty text."""
    found = pattern.match(text, start)
    assert found is not None
    return found.end()


def whole(value: Any) -> Any:
    """Converts numbers without fraction to whole numbers: labels travel as doubles."""
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
