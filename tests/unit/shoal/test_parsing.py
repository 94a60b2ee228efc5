"""Texts that make the parsers below raise something else than ValueError."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.parsing import MAX_DEPTH, check_depth, parse_json, parse_python, parse_yaml

LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_json, "[" * 100_000),
        (parse_json, "[" * 100 + "]" * 100),
        (parse_json, b'{"a":' * 5000),
        (parse_json, "9" * 5000),
        (parse_json, b"\xff"),
        (parse_yaml, "[" * 5000),
        (parse_yaml, "a: 2026-13-41"),
        (parse_yaml, "a: !!timestamp x"),
        (parse_yaml, "a: &a [*a]"),
        (parse_yaml, LAUGHS),
        (parse_yaml, "a: !!python/object:os.system"),
        (parse_python, "(" * 5000),
        (parse_python, "-" * 100_000 + "1"),
        (parse_python, "a = '\0'"),
        (parse_python, "1_0_"),
    ],
)
def test_a_text_that_is_too_deep_too_large_or_malformed_is_a_value_error(
    parse: Callable[[Any], Any], text: str | bytes
) -> None:
    with pytest.raises(ValueError) as raised:
        parse(text)
    assert 0 < len(str(raised.value)) < 1000


def test_values_as_deep_as_allowed_are_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(text) == parse_yaml(text)
    check_depth({"a": [{"b": 1}] * 100})
    assert parse_python("a = (1)").body


def test_python_that_warns_prints_nothing(recwarn: pytest.WarningsRecorder) -> None:
    parse_python("a = 1or 2\nb = '\\d'")
    assert not recwarn.list
