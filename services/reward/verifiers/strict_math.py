"""Mathematical equality of an answer in Minerva's form (arXiv:2206.14858)."""

import contextlib
import importlib
import io
from typing import Any

from pydantic import Field

from services.reward.common.deadline import within
from services.reward.common.math.normal_forms import (
    check_depth,
    hendrycks_form,
    math_form,
    minerva_answer,
    minerva_form,
    tail,
)
from services.reward.common.math.values import is_too_large
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section


class StrictMathOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for comparing one answer. After this time the completion is UNSCORABLE."""


def load() -> None:
    """Imports sympy's LaTeX parser; takes a second."""
    importlib.import_module("antlr4")
    parser = importlib.import_module("sympy.parsing.latex._parse_latex_antlr")
    # sympy requires version 4.11 of the grammar's runtime, and refuses 4.13, which math-verify installs. Both versions
    # read the grammar: its format has not changed since 4.10.
    parser.version = lambda name: "4.11"  # type: ignore[attr-defined]


def verify(completion: str, label: Any, options: StrictMathOptions = StrictMathOptions()) -> Verdict:
    """Compares the answer in "Final Answer: The final answer is X. I hope it is correct." with the label.

    Without that sentence the whole completion must be the answer, in Minerva's normal form, which keeps the first
    formula of the text after the last "=". Only the last 20,000 characters are read. Label: LaTeX, or a list of
    accepted answers. Value: 1 if both have the same normal form by MATH's own scorer, or sympy simplifies their
    difference to 0, else 0. Unscorable if comparing takes longer than `timeout_s`.
    """
    text = tail(completion)
    announced = minerva_answer(text)
    answer = minerva_form(text if announced is None else announced)
    wanted = acceptable_texts(label)
    if any(equal_as_text(answer, gold) for gold in wanted):
        return Verdict(1.0, answer, math_form(answer))
    check_depth(answer)
    correct = within(
        options.timeout_s,
        "comparing the answer with the label",
        lambda: any(equal_for_sympy(answer, gold) for gold in wanted),
    )
    return Verdict(float(correct), answer, math_form(answer))


VERIFIER = Verifier(
    verify,
    values="1 or 0",
    options=StrictMathOptions,
    load=load,
    same_answers="equal numbers, or the same normal form by MATH's own scorer",
)


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
