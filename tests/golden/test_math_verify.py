"""Scores of mathematical answers against those of math-verify and open-instruct."""

import logging
from collections.abc import Iterator

import pytest

from services.reward.common.math.normal_forms import hendrycks_form, minerva_form
from services.reward.common.math.stated.spans import find_boxes
from services.reward.common.verdict import Unscorable
from services.reward.verifiers import strict_math
from services.reward.verifiers.registry import VERIFIERS
from tests.golden import GoldenCase, golden_cases

_OTHER_BOXES = {r"\boxed{\boxed{3}}": r"\boxed{\boxed{3}}", r"\boxed 5 and $x$": r"\boxed 5"}
"""Texts of which Shoal takes another box than open-instruct: the outer of two, whose content is all of the answer, and
the number alone behind a command without braces, where open-instruct reads on to the next dollar sign."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def value(verifier: str, case: GoldenCase, **options: object) -> float:
    VERIFIERS[verifier].load()
    return VERIFIERS[verifier].judge(case.inputs["response"], case.inputs["gold"], (), options).value


@golden_cases("math_verify", only=("math_verify_suite",))
def test_math_agrees_with_math_verifys_own_suite(case: GoldenCase) -> None:
    names = ("extraction", "boxed_match_priority", "float_rounding", "strict", "allow_set_relation_comparison")
    assert value("math", case, **{name: case.config[name] for name in names}) == case.expected["score"], case.inputs


@golden_cases("math_verify", only=("math_answer",))
def test_math_scores_like_both_systems_and_where_they_differ_takes_the_higher_score(case: GoldenCase) -> None:
    agreed = case.expected["score"]
    wanted = max(case.expected["scores"][name] for name in ("open_instruct_math", "math_verify"))
    assert value("math", case) == (wanted if agreed is None else agreed), case.inputs


@golden_cases("math_verify", only=("math_answer",))
def test_strict_math_scores_minervas_form_like_open_instruct(case: GoldenCase) -> None:
    assert value("strict_math", case) == case.expected["scores"]["open_instruct_strict_math"], case.inputs


@golden_cases("math_verify", only=("gsm8k_last_number",))
def test_gsm8k_compared_as_text_scores_like_open_instruct(case: GoldenCase) -> None:
    assert value("gsm8k", case, equality="text") == case.expected["scores"]["open_instruct_gsm8k"], case.inputs


@golden_cases("math_verify", only=("gsm8k_last_number",))
def test_gsm8k_scores_like_both_systems(case: GoldenCase) -> None:
    agreed = case.expected["score"]
    try:
        got = value("gsm8k", case)
    except Unscorable:
        assert agreed is None, case.inputs
        return
    assert got == agreed if agreed is not None else got in case.expected["scores"].values(), case.inputs


@golden_cases("math_verify", only=("hendrycks_strip_string",))
def test_the_normal_form_is_that_of_the_math_datasets_scorer(case: GoldenCase) -> None:
    assert hendrycks_form(case.inputs["text"]) == case.expected["text"]


@golden_cases("math_verify", only=("minerva_normalise",))
def test_the_minerva_form_is_that_of_minerva(case: GoldenCase) -> None:
    assert minerva_form(case.inputs["text"]) == case.expected["text"]


@golden_cases("math_verify", only=("last_boxed",))
def test_the_last_whole_box_is_that_of_open_instruct(case: GoldenCase) -> None:
    text = case.inputs["text"]
    whole = [text[box.start : box.end] for box in find_boxes(text) if not box.is_cut_off]
    assert (whole[-1] if whole else None) == _OTHER_BOXES.get(text, case.expected["text"])


@golden_cases("math_verify", only=("equivalence",))
def test_two_answers_are_equal_as_text_and_for_sympy_where_they_are_for_open_instruct(case: GoldenCase) -> None:
    strict_math.load()
    answer, gold = case.inputs["answer"], case.inputs["gold"]
    assert strict_math.equal_as_text(answer, gold) == case.expected["hendrycks"], case.inputs
    assert strict_math.equal_for_sympy(answer, gold) == case.expected["sympy"], case.inputs
