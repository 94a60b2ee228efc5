"""Tests of the values that a Python file's own assignments show."""

import ast
from typing import Any

import pytest

from shoal.translate.sources.values import Unread, Values


def value_of(text: str) -> Any:
    """Reads the expression in the last line of a file."""
    tree = ast.parse(text)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    return Values(tree).read(last.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b = 'm', 'n'\nb", "n"),
        ("a = 1\nb = a\na = 2\nb + a", 3),
        ("t = 'x {p}'\nt = t.replace('{p}', 'y')\nt", "x y"),
        ("import x\nif __name__ == '__main__':\n    a = 1\na", 1),
        ("with open('f') as f:\n    a = 2\na", 2),
    ],
)
def test_a_name_has_the_value_that_it_was_last_assigned(text: str, expected: object) -> None:
    assert value_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a = 0\nfor row in rows:\n    a = max(a, row)\na + 1",
        "a = 0\na += 1\na",
        "a = 1\nif x:\n    a = 2\na",
        "a, b = f()\nb",
        "for a in rows:\n    pass\na",
        "a = a\na",
    ],
)
def test_a_name_that_only_a_run_decides_is_unread(text: str) -> None:
    assert isinstance(value_of(text), Unread)


def test_a_function_of_the_file_is_none_of_a_library_with_its_name() -> None:
    tree = ast.parse("def accuracy_reward(completions):\n    return []\nf = [accuracy_reward, other]")
    assignment = tree.body[-1]
    assert isinstance(assignment, ast.Assign)
    first, other = Values(tree).function_names(assignment.value)
    assert first.startswith("accuracy_reward, ") and other == "other"
