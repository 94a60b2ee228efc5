"""Tests of whether a text claims the answers that it names."""

import pytest

from services.reward.common.math.stated.answers import stated_answers, stated_word
from services.reward.common.math.stated.claims import is_question, is_restated, is_supposed


@pytest.mark.parametrize(
    "text",
    [
        "Is it \\boxed{7}?",
        "Can the answer be \\(\\boxed{7}\\)?",
        "Could the answer be $\\boxed{7}$ apples?",
        "The answer is not $\\boxed{7}$.",
        "The answer can't be \\boxed{7}.",
        "Suppose that the answer is $\\boxed{7}$.",
        "Let's suppose that the answer is $7$.",
        "If the answer is 7, the angles fit.",
        "It might seem that the answer is 7.",
        "Some students think the answer is 7.",
        "I wonder whether the answer is 7.",
        "Is the answer 7?",
        "Could it be 7?",
        "We have to expand $(x+2)(x+3)$. Expanding gives: the expansion of $(x+2)(x+3)$.",
        "I must find $2^{10}$.",
    ],
)
def test_what_is_asked_supposed_denied_or_restated_is_no_answer(text: str) -> None:
    assert stated_answers(text) == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is $\\boxed{6}$. Or could it be $\\boxed{7}$?", "6"),
        ("Is it $\\boxed{7}$? Yes.", "7"),
        ("Is it 5? No, it is $\\boxed{6}$.", "6"),
        ("Assuming independence gives $\\boxed{6}$.", "6"),
        ("The two are equal if $x=\\boxed{6}$.", "6"),
        ("The largest amount that is not possible is $\\boxed{43}$.", "43"),
        ("The number of students who said no is \\boxed{12}.", "12"),
        ("If x is 2, the answer is 12.", "12"),
        ("It seems that the answer is 12.", "12"),
        ("How many are left? 12.", "12"),
        ("So that makes 3 + 4 = 7?", "3 + 4 = 7"),
        ("The greatest common factor is the factor $2x$.", "2x"),
        ("Expanding, $x^2+2x+1$.", "x^2+2x+1"),
        ("There are $28$ segments, $8$ of which are sides.", "28"),
        ("There are 30 paths. (Without the rule, 70.)", "30"),
        ("The sum is 30.\n\nComments: the product is 70. The mean is 8.", "30"),
        ("Notes: x is even.\n\nThe sum is 30.", "30"),
    ],
)
def test_what_is_claimed_is_the_answer(text: str, answer: str) -> None:
    assert stated_answers(text)[-1] == answer


def test_a_bold_word_that_ends_the_text_is_its_word_where_there_is_no_box() -> None:
    assert stated_word("So, is the sum finite? **Yes**.") == "Yes"
    assert stated_word("**Yes** is what one expects.") == ""
    assert stated_word("\\boxed{\\text{No}}\n\n**Yes**") == ""


def test_a_question_with_a_result_and_no_word_that_asks_is_a_calculation() -> None:
    for text, asks in (("Is x = 5?", True), ("Or 5?", True), ("That makes 3+2=5?", False), ("It is 5.", False)):
        assert is_question(text, 0, len(text)) is asks, text


def test_a_supposition_ends_where_something_follows_from_it() -> None:
    assert is_supposed("Suppose that x is ")
    assert not is_supposed("Suppose that x is 2, then y is ")
    assert not is_supposed("Assume that x is 2 so y is ")


def test_a_worked_out_expression_is_not_the_question() -> None:
    assert is_restated("the expansion of ", "(x+1)^2")
    assert not is_restated("we compute ", "3+4=7")
    assert not is_restated("Calculating ", "7")
