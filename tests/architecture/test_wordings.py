"""Tests assert the reason, the field, the value and the exit code of an error, and leave its sentence free."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.repository import ROOT

MIN_WORDS = 5
"""A literal of so many words is a sentence, which a test would freeze."""
MAX_PINNED = {
    "acceptance": 1,
    "contract": 7,
    "unit/services": 16,
    "unit/shoal": 4,
}
"""The number of sentences that the asserts of each folder still have. Lower it with every one that goes."""

_WORD = re.compile(r"""["'(]*[A-Za-z][A-Za-z'-]*[.,;:!?)"']*""")


def _asserted(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "raises":
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "match")


def _sentences(tree: ast.AST) -> list[str]:
    texts = [node.value for part in _asserted(tree) for node in ast.walk(part) if isinstance(node, ast.Constant)]
    return [
        text
        for text in texts
        if isinstance(text, str) and sum(bool(_WORD.fullmatch(word)) for word in text.split()) >= MIN_WORDS
    ]


def pinned() -> Counter[str]:
    """Returns the number of sentences in the asserts of each folder of tests."""
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        parts = path.relative_to(ROOT / "tests").parts
        folder = "/".join(parts[:2] if parts[0] == "unit" else parts[:1])
        found[folder] += len(_sentences(ast.parse(path.read_text(encoding="utf-8"))))
    return +found


def test_no_folder_pins_more_sentences_than_before() -> None:
    more = {folder: number for folder, number in pinned().items() if number > MAX_PINNED.get(folder, 0)}
    assert not more, f"assert the reason, the field or the value instead of the sentence: {more}, at most {MAX_PINNED}"


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ('assert "grpo.group_size must be at least two" in text', 1),
        ('with pytest.raises(ValueError, match="there is no run of that"): pass', 1),
        ('assert "grpo.group_size" in text and "(given: 1) of 2 or 3 x" in text', 0),
        ('text = "there is no run of that name"', 0),
    ],
)
def test_a_sentence_is_counted_in_an_assert_and_nowhere_else(code: str, number: int) -> None:
    assert len(_sentences(ast.parse(code))) == number
