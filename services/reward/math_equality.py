"""Whether two answers in LaTeX are equal: as text, or for sympy."""

import contextlib
import importlib
import io
from typing import Any

from services.reward.math_text import hendrycks_form


def load() -> None:
    """Imports sympy's parser of LaTeX; takes a second."""
    importlib.import_module("antlr4")
    parser = importlib.import_module("sympy.parsing.latex._parse_latex_antlr")
    # sympy asks for the runtime its grammar was made with, 4.11, and refuses the 4.13 that math-verify brings;
    # both read the grammar, whose format has not changed since 4.10.
    parser.version = lambda name: "4.11"  # type: ignore[attr-defined]


def equal_as_text(answer: str, label: str) -> bool:
    """Whether both have the same normal form by MATH's own scorer."""
    return hendrycks_form(answer) == hendrycks_form(label)


def equal_for_sympy(answer: str, label: str) -> bool:
    """Whether sympy reads both and simplifies their difference to 0; False when it reads one of them not.

    Call `load` before.
    """
    import sympy

    try:
        return bool(sympy.simplify(_parsed(answer) - _parsed(label)) == 0)
    except MemoryError:
        raise
    except Exception:
        # sympy raises all sorts on what is no expression: a tuple, a word, half a formula.
        return False


def _parsed(text: str) -> Any:
    from sympy.parsing.latex._parse_latex_antlr import parse_latex

    # The runtime prints that the versions differ.
    with contextlib.redirect_stdout(io.StringIO()):
        return parse_latex(text)
