"""Computer algebra on answers: math-verify's grammar and comparison, with Shoal's comparison of numbers."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from services.reward.common.math import values
from services.reward.common.math.normal_forms import nesting

_MAX_CHARACTERS = 1000
_MAX_NESTING = 30
_TWO_NUMBERS = re.compile(r"[0-9]\s+[0-9]")
_FIRST_FORMULAS = ("[0,1)", "\\{1,2\\}", "x\\le\\frac{1}{2}", "(x+1)^2\\cdot\\sqrt{2}", "\\sin x", "y=-2x")
_REPLACED: dict[str, Callable[..., Any]] = {}
"""The original functions of math-verify, which Shoal's replacements call."""


@dataclass(frozen=True)
class Rules:
    """The rules of comparing two answers; see the options of the verifier."""

    float_rounding: int = 6
    strict: bool = True
    allow_set_relation_comparison: bool = False


def load() -> None:
    """Imports math-verify and gives it Shoal's comparison of numbers; takes seconds. Reads a few formulas, since the
    grammar learns from the first formulas how to read others."""
    importlib.import_module("math_verify.parser")
    grader = importlib.import_module("math_verify.grader")
    converter = importlib.import_module("latex2sympy2_extended.latex2sympy2")._Latex2Sympy
    if not _REPLACED:
        _REPLACED["symbolic_eq"] = grader.sympy_symbolic_eq
        _REPLACED["interval"] = converter.convert_interval
    grader.sympy_numeric_eq = _numeric_eq  # type: ignore[attr-defined]
    grader.sympy_symbolic_eq = _symbolic_eq  # type: ignore[attr-defined]
    converter.convert_binom = _binomial
    converter.convert_interval = _interval
    for formula in _FIRST_FORMULAS:
        parsed(formula)


@lru_cache(maxsize=4096)
def parsed(latex: str) -> Any:
    """Returns the sympy expression that math-verify reads; None if it reads none, or for long texts and deep brackets,
    which take seconds and are no answers. Cached, since samples of a group repeat each other's answers."""
    if len(latex) > _MAX_CHARACTERS or nesting(latex.replace("\\{", "{").replace("\\}", "}")) > _MAX_NESTING:
        return None
    parser = importlib.import_module("math_verify.parser")
    normalization = importlib.import_module("latex2sympy2_extended.math_normalization")
    config = normalization.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    text = normalization.normalize_latex(latex, config)
    if not text or _TWO_NUMBERS.search(text):
        return None
    try:
        return parser.parse_latex_cached.__wrapped__(text)
    except MemoryError:
        raise
    except Exception:
        # The grammar raises errors of many kinds for text that is not a formula.
        return None


def are_equal(gold: Any, answer: Any, rules: Rules) -> bool:
    """Returns whether math-verify finds two expressions equal, with "i" as a letter or as the imaginary unit."""
    if _equal(gold, answer, rules):
        return True
    complex_gold, complex_answer = _with_imaginary_unit(gold), _with_imaginary_unit(answer)
    is_complex = complex_gold is not gold or complex_answer is not answer
    return is_complex and _equal(complex_gold, complex_answer, rules)


def inequalities(expression: Any) -> list[Any]:
    """Returns the inequalities of a chain or list, all in one direction; empty if it states anything else."""
    from sympy import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan

    found: list[Any] = []
    parts: Any = getattr(expression, "_unsorted_args", None) or getattr(expression, "args", ())
    for part in parts:
        found += inequalities(part) if type(part).__name__ == "And" else [part]
    if not all(isinstance(part, GreaterThan | LessThan | StrictGreaterThan | StrictLessThan) for part in found):
        return []
    return [part.reversed if isinstance(part, GreaterThan | StrictGreaterThan) else part for part in found]


def _equal(gold: Any, answer: Any, rules: Rules) -> bool:
    from math_verify import verify

    are_equal: bool = verify(
        gold,
        answer,
        float_rounding=rules.float_rounding,
        strict=rules.strict,
        allow_set_relation_comp=rules.allow_set_relation_comparison,
        # math-verify's own time limit swallows the exception that interrupts it; `deadline` does not.
        timeout_seconds=None,
        raise_on_error=False,
    )
    return are_equal


def _with_imaginary_unit(expression: Any) -> Any:
    """Reads "i" as the imaginary unit, unless the answer is only "i". math-verify reads it as a letter."""
    letters = [symbol for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"]
    if not letters or expression in letters:
        return expression
    from sympy import I

    try:
        return expression.subs(dict.fromkeys(letters, I))
    except (TypeError, ValueError, AttributeError):  # In an order, as i < 5 or an interval's ends, "i" is a letter.
        return expression


def _numeric_eq(one: Any, other: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Replaces math-verify's comparison, which sets small factors of a difference to 0."""
    from sympy import MatrixBase, MatrixExpr

    if isinstance(one, MatrixBase | MatrixExpr) or isinstance(other, MatrixBase | MatrixExpr):
        one, other = one.doit(), other.doit()
        if getattr(one, "shape", None) != getattr(other, "shape", ()):
            return False
        pairs = zip(one.flat(), other.flat(), strict=True)
        return all(_numeric_eq(a, b, float_rounding, numeric_precision) or _symbolic_eq(a, b) for a, b in pairs)
    if not (getattr(one, "is_number", False) and getattr(other, "is_number", False)):
        return False
    return values.are_equal(one, other, float_rounding) is True


def _symbolic_eq(one: Any, other: Any) -> bool:
    """Simplifies a difference only if values do not show that it is not 0."""
    from sympy import Expr

    if isinstance(one, Expr) and isinstance(other, Expr):
        if one.is_number and other.is_number and values.are_equal(one, other, Rules.float_rounding) is False:
            return False
        if (one.free_symbols or other.free_symbols) and values.are_apart(one, other):
            return False
    return bool(_REPLACED["symbolic_eq"](values.with_exact_decimals(one), values.with_exact_decimals(other)))


def _binomial(converter: Any, binomial: Any) -> Any:
    """Leaves a binomial coefficient unevaluated, as factorials are: it may be too large."""
    from sympy import binomial as coefficient

    top, bottom = converter.convert_expr(binomial.upper), converter.convert_expr(binomial.lower)
    return coefficient(top, bottom, evaluate=False)


def _interval(converter: Any, interval: Any) -> Any:
    """Refuses ends that are too large, since comparing the ends would compute them."""
    if any(values.is_too_large(converter.convert_expr(end)) for end in interval.expr()):
        raise ValueError("an end of the interval is too large")
    return _REPLACED["interval"](converter, interval)
