"""Tests of the notation in which answers are compared."""

import pytest

from services.reward.common.math.notation import in_common_notation, with_letters


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("√3/2", "\\sqrt{3}/2"),
        ("√(x+1)", "\\sqrt{x+1}"),
        ("3½", "3\\frac{1}{2}"),
        ("x⁻¹", "x^{-1}"),
        ("3×10⁸", "3\\times 10^{8}"),
        ("－１２", "-12"),
        ("10–12", "10–12"),
        ("72\u202f000", "72000"),
        ("1\\,000\\,000", "1000000"),
        ("32,\\! 349", "32349"),
        ("32, 349", "32, 349"),
        ("5\\text{ }6", "5 6"),
        ("11 5/6", "11\\frac{5}{6}"),
        ("4 10/3", "4 10/3"),
        ("0.1\\overline{6}", "\\frac{1}{6}"),
        ("0.\\dot{1}2\\dot{3}", "\\frac{41}{333}"),
        ("0.333...", "\\frac{1}{3}"),
        ("3.14159\\ldots", "3.14159\\ldots"),
        ("(1,2).", "(1,2)"),
        ("\\{1,2\\};", "\\{1,2\\}"),
        ("1,3,5,\\dots", "1,3,5,\\ldots"),
        ("7!", "7!"),
        ("101_{\\text{two}}", "101_{2}"),
        ("(101)_{(2)}", "101_{2}"),
        ("31\\text{ (base 8)}", "31_{8}"),
        ("a_{-1}", "a_{-1}"),
        ("x\\text{ is congruent to }4 \\bmod 9", "x\\equiv 4 \\mod 9"),
        ("\\frac{3}{\\mathrm e}", "\\frac{3}{\\mathrm{e}}"),
        ("2\\mathrm\\pi", "2\\pi"),
        ("\\operatorname{ln} 2", "\\ln  2"),
        ("5\\text{ sec}", "5\\text{ sec}"),
        ("\\text{both}", "\\text{both}"),
    ],
)
def test_an_answer_is_written_in_one_notation(text: str, latex: str) -> None:
    assert in_common_notation(text) == latex


def test_a_single_upright_letter_is_the_letter() -> None:
    assert with_letters("2\\mathrm{i}").split() == ["2", "i"]
    assert with_letters("\\frac{\\mathrm{d}y}{\\text{e}}").replace(" ", "") == "\\frac{dy}{e}"
    assert with_letters("\\text{cm}") == "\\text{cm}"
