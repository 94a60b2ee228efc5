"""Equality of an answer and a label: by value, unit and marks, and by computer algebra for irrational values."""

import re
from fractions import Fraction
from itertools import permutations
from typing import Any

from services.reward.common.math import algebra, marks, reading, restated, units, values
from services.reward.common.math.algebra import Rules
from services.reward.common.math.notation import with_letters
from services.reward.common.math.rational import Rational
from services.reward.common.math.reading import Reading

_SPACE = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")
_SET = re.compile(r"\\\{[^{}]*\\\}")
_TUPLE = re.compile(r"\([^()]*,[^()]*\)")
_WORDS = re.compile(r"\\text\{([^{}]{3,60})\}")
_NAME = re.compile(r"[a-zA-Z](?:_\{?\w+\}?)?")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")
_OR = re.compile(r"(?<![a-zA-Z])or(?![a-zA-Z])")
_MAX_RELATIONS = 4


def are_equal(gold: Reading, answer: Reading, rules: Rules) -> bool:
    """Returns whether the answer equals the label, in any notation."""
    if _written(gold) == _written(answer):
        return True
    if len(gold.sides) < 2 and (forms := restated.forms(answer)):
        return _is_any_form(gold, forms, rules)
    if _are_equal(gold, _residue(gold, answer), rules):
        return True
    exact, sign, _ = answer.text.partition("\\approx")
    if sign and re.search(r"[\\/]", exact) and _are_equal(gold, reading.read(exact), rules):
        return True  # \\frac{x}{8} \\approx 0.125x.
    # The m of 5m may be a letter or a unit. It is a letter if the label has letters.
    bare = None if any(character.isalpha() for character in gold.value) else reading.with_bare_unit(answer)
    return bare is not None and _are_equal(gold, bare, rules)


def _is_any_form(gold: Reading, forms: list[restated.Form], rules: Rules) -> bool:
    """Returns whether one of several forms of an answer, all of the same amount, equals the label.

    A form without a unit has the others' unit. If exact forms are only rounded to each other, the last counts. A form
    that is only near counts if it is a decimal number to which an exact form is rounded.
    """
    exact = [form for form in forms if not form.is_near] or forms[:1]
    for form in forms:
        if form.is_near and form not in exact:
            is_counted = form.last_digit and any(restated.agree(each, form, restated.is_rounded) for each in exact)
        else:
            is_counted = form is exact[-1] or restated.agree(form, exact[-1])
        if not is_counted:
            continue
        other_units = [units.are_other_units(gold.quantity, each.reading.quantity) for each in forms]
        if any(other_units) and not form.reading.quantity.measures:
            continue
        if _are_equal(gold, form.reading, rules):
            return not restated.contradict(forms)
    return False


def _written(each: Reading) -> str:
    return _SPACE.sub("", with_letters(_WORDS.sub(r"\1", each.text)))


def _are_equal(gold: Reading, answer: Reading, rules: Rules) -> bool:
    if not answer.value or not gold.value:
        return False
    if not (gold.quantity.is_number and answer.quantity.is_number) or gold.marks != answer.marks:
        return False
    if rules.strict and _SET.fullmatch(gold.value) and _TUPLE.fullmatch(answer.value):
        return False
    if units.are_other_units(gold.quantity, answer.quantity) or _are_other_moduli(gold, answer):
        return False
    if _are_other_joints(marks.joints(gold.value), marks.joints(answer.value)):
        return False
    if _SPACE.sub("", gold.value) == _SPACE.sub("", answer.value) and len(_scales(gold, answer)) == 1:
        return gold.quantity.factor == answer.quantity.factor
    if _num_repeated(gold) != _num_repeated(answer):
        return False
    if gold.letters or answer.letters:
        one, other = (each.joined_letters.lower() for each in (gold, answer))
        if one == other or (one.isalpha() and other.isalpha()):
            return one == other
    return _values_are_equal(gold, answer, rules)


def _num_repeated(each: Reading) -> int:
    """Returns the number of repeated elements of a list: 5, 5 is not the answer 5."""
    if each.number is not None or (
        "," not in each.value and ";" not in each.value and not reading.WORD_OR.search(each.value)
    ):
        return 0  # 1,000,000 is not a list.
    elements = ["=".join(sides).replace(" ", "") for sides in marks.elements(reading.WORD_OR.sub(", ", each.value))]
    if any(element.startswith("(") for element in elements) or ";" in each.value:
        return 0  # Points, and solutions of several unknowns, are a set.
    return len(elements) - len(set(elements))


def _residue(gold: Reading, answer: Reading) -> Reading:
    """Returns the residue of 3^{100} \\equiv 2 \\pmod{5} if the label is a number, and any other answer unchanged."""
    number, sign, residue = answer.value.rpartition("\\equiv")
    is_residue = sign and answer.modulus and gold.number is not None and not _LETTER.search(number)
    return reading.read(residue.strip()) if is_residue else answer


def _are_other_joints(one: list[str], other: list[str]) -> bool:
    """Returns whether other words join the inequalities. A comma, or a chain such as 1 < x < 3, fits both words."""
    if not one or not other:
        return False
    return sorted(one) != sorted(other) if len(one) == len(other) else not set(one) & set(other)


def _are_other_moduli(gold: Reading, answer: Reading) -> bool:
    """Returns whether the moduli differ. A missing modulus differs only if a congruence is stated."""
    if gold.modulus and answer.modulus:
        one, other = reading.number_of(gold.modulus), reading.number_of(answer.modulus)
        return gold.modulus != answer.modulus and (one is None or other is None or one.value != other.value)
    return bool(gold.modulus or answer.modulus) and "\\equiv" in gold.value + answer.value


def _values_are_equal(gold: Reading, answer: Reading, rules: Rules) -> bool:
    scales = _scales(gold, answer)
    one, other = _numbers(gold, answer)
    if one is not None and other is not None:
        return any(
            values.equal_or_rounded(reading.scaled(one, a), reading.scaled(other, b), rules.float_rounding)
            for a, b in scales
        )
    if answer.operators or answer.is_too_large or gold.is_too_large:
        # What is still to be computed, or is too large for it, equals only what is written in the same way.
        gold_expression = algebra.parsed(gold.value) if answer.operators == gold.operators else None
        return gold_expression is not None and bool(gold_expression == algebra.parsed(answer.value))
    return _expressions_are_equal(gold, answer, scales, rules)


def _numbers(gold: Reading, answer: Reading) -> tuple[Rational | None, Rational | None]:
    """Returns the values if they are rational numbers, or equations whose last side is rational."""
    one, other = gold.number, answer.number
    if one is None and other is not None and len(gold.sides) == 2 and _NAME.fullmatch(gold.sides[0]):
        one = reading.number_of(gold.sides[1])
    if other is None and gold.number is not None and len(answer.sides) > 1:
        other = reading.number_of(answer.sides[-1])
    return one, other


def _scales(gold: Reading, answer: Reading) -> list[tuple[Fraction, Fraction]]:
    """Returns the factors with which both values are compared: 12% is 12 percent, and 0.12."""
    one, other = gold.quantity, answer.quantity
    scales = [(one.factor, other.factor)]
    if one.is_percent and not other.is_percent:
        scales.append((one.factor / 100, other.factor))
    if other.is_percent and not one.is_percent:
        scales.append((one.factor, other.factor / 100))
    return scales


def _expressions_are_equal(
    gold: Reading, answer: Reading, scales: list[tuple[Fraction, Fraction]], rules: Rules
) -> bool:
    texts = [each.value_without_dots for each in (gold, answer)]
    if any("\\pm" in text for text in texts):
        texts = [_written_out(text) for text in texts]
    one, other = map(algebra.parsed, texts)
    if one is None or other is None or values.is_too_large(one) or values.is_too_large(other):
        return False
    if any(algebra.are_equal(_times(one, a), _times(other, b), rules) for a, b in scales):
        return True
    joints = marks.joints(gold.value)
    if _OR.search(gold.value + answer.value) and (set(joints) != {"or"} or joints != marks.joints(answer.value)):
        return False
    return _are_same_inequalities(one, other, joints.count("or"), rules)


def _written_out(latex: str) -> str:
    """Returns a list with both values of each \\pm, without the names of the unknowns."""
    found = []
    for element in marks.elements(reading.WORD_OR.sub(", ", latex)):
        value = element[-1]
        found += [value.replace("\\pm", sign).replace("\\mp", other) for sign, other in ("+-", "-+")]
    return ", ".join(dict.fromkeys(found))


def _times(expression: Any, factor: Fraction) -> Any:
    from sympy import Expr, Rational

    if factor == 1 or not isinstance(expression, Expr):
        return expression
    return Rational(factor.numerator, factor.denominator) * expression


def _are_same_inequalities(one: Any, other: Any, num_ors: int, rules: Rules) -> bool:
    """Returns whether both state the same inequalities, in any order: 1 < x < 3 equals x < 3 and x > 1. If "or" joins
    some of them, it must join all."""
    golds, answers = algebra.inequalities(one), algebra.inequalities(other)
    if not 2 <= len(golds) == len(answers) <= _MAX_RELATIONS or num_ors not in (0, len(golds) - 1):
        return False
    return any(
        all(algebra.are_equal(gold, answer, rules) for gold, answer in zip(golds, order, strict=True))
        for order in permutations(answers)
    )
