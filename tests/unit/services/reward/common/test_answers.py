"""Forms of answers: equal answers have the same form, and others do not."""

import pytest

from services.reward.common.math.normal_forms import math_form
from services.reward.common.text import number_form, word_form
from services.reward.verifiers.registry import ALL_VERIFIERS


@pytest.mark.parametrize(
    ("same", "other"),
    [(["5", "5.0", "05", "5."], "-5"), (["0", "-0", "0.00", ".0"], "0.1"), (["-1.50", "-01.5"], "1.5"), (["+5"], "5")],
)
def test_equal_numbers_have_the_same_form(same: list[str], other: str) -> None:
    assert len({number_form(number) for number in same}) == 1 and number_form(other) != number_form(same[0])


def test_numbers_of_any_length_are_told_apart() -> None:
    long = "1" * 5000
    assert number_form(f"{long}.0") == long != number_form(f"{long}1")


@pytest.mark.parametrize(
    ("same", "other"),
    [(["\\frac12", "\\dfrac{1}{2}", "1/2", "0.5"], "2"), (["x = 5", "5"], "y+5"), (["10\\%", "10", "10.0"], "10x")],
)
def test_answers_in_latex_have_the_same_form_where_the_scorer_of_math_has(same: list[str], other: str) -> None:
    assert len({math_form(answer) for answer in same}) == 1, [math_form(answer) for answer in same]
    assert math_form(other) != math_form(same[0])


def test_the_same_words_have_the_same_form() -> None:
    assert word_form("The  Eiffel Tower.") == word_form("eiffel tower")
    assert word_form("A") == "a" != word_form("the")
    assert word_form("+") == "+" and word_form(" ") == ""


VOTES = {
    "exact_string": ("cat", ["cat", " cat\n", "dog"], ""),
    "flan": ("cat", ["The answer is: the cat", "cat", "dog"], ""),
    "gsm8k": ("1000", ["It is 1,000.", "x = 1000.0", "2"], "none"),
    "math": ("0.5", ["So \\boxed{\\frac12}.", "It is $\\dfrac{1}{2}$.", "$3$"], "none"),
    "multiple_choice": ("B", ["(B)", "The answer is B", "(C)"], "none"),
    "puzzle": ("cat", ["<think>x</think>The cat", "cat", "dog"], ""),
    "re_search": ("cat", [f"<finish>{answer}</finish>" for answer in ("cat", "the cat.", "dog")], "none"),
    "strict_math": ("0.5", ["\\frac12", "$\\frac{1}{2}$", "3"], ""),
    "string_matcher": ("cat", [f"<answer>{answer}</answer>" for answer in ("cat", "the cat", "dog")], "none"),
}
"""For each verifier that compares answers: a label, two completions that answer the same, one that does not, and one
that does not answer."""


@pytest.mark.parametrize("name", VOTES)
def test_a_verifier_gives_equal_answers_the_same_form(name: str) -> None:
    label, completions, nothing = VOTES[name]
    verifier = ALL_VERIFIERS[name]
    verifier.load()
    one, same, other, none = (verifier.judge(text, label, [], {}) for text in (*completions, nothing))
    assert one.answer and one.answer == same.answer != other.answer and other.answer, (one, same, other)
    assert (one.value, same.value, other.value) == (1.0, 1.0, 0.0)
    assert none.answer == "", none


def test_the_verifiers_that_say_when_answers_are_the_same_are_those_that_give_them() -> None:
    comparing = {id(ALL_VERIFIERS[name]) for name in VOTES}
    assert {id(verifier) for verifier in ALL_VERIFIERS.values() if verifier.same_answers} == comparing
