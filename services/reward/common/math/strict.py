"""Equality of two answers in LaTeX: as text, or for sympy."""

import contextlib
import importlib
import io
from typing import Any

from services.reward.common.math.normal_forms import hendrycks_form
from services.reward.common.math.values import is_too_large


def load() -> None:
    """Imports sympy's LaTeX parser; takes a second."""
    importlib.import_module("antlr4")
    parser = importlib.import_module("sympy.parsing.latex._parse_latex_antlr")
    # sympy requires version 4.11 of the grammar's runtime, and refuses 4.13, which math-verify installs. Both versions
    # read the grammar: its format has not changed since 4.10.
    parser.version = lambda name: "4.11"  # type: ignore[attr-defined]


def equal_as_text(answer: str, label: str) -> bool:
    """Returns whether both have the same normal form by MATH's own scorer."""
    return hendrycks_form(answer) == hendrycks_form(label)


def equal_for_sympy(answer: str, label: str) -> bool:
    """Returns whether sympy parses both and simplifies their difference to 0; False if it cannot parse either.

    Numbers that are too large to compute must be written the same. Call `load` first.
    """
    import sympy

    try:
        one, other = _parsed(answer), _parsed(label)
        if is_too_large(one) or is_too_large(other):
            return bool(one == other)
        return bool(sympy.simplify(one - other) == 0)
    except MemoryError:
        raise
    except Exception:
        # sympy raises many kinds of errors for anything but an expression: a tuple, a word, half a formula.
        return False


def _parsed(text: str) -> Any:
    from sympy.parsing.latex._parse_latex_antlr import parse_latex

    # The runtime prints a warning about the versions.
    with contextlib.redirect_stdout(io.StringIO()):
        return parse_latex(text)
