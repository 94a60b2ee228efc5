"""Mathematical equality of an answer in Minerva's form (arXiv:2206.14858)."""

from typing import Any

from services.reward import math_equality
from services.reward.deadline import deadline
from services.reward.math_text import check_depth, minerva_answer, minerva_form, tail
from services.reward.verdict import Verdict, acceptable_texts


def load() -> None:
    """Imports what judging needs; takes a second."""
    math_equality.load()


def verify(completion: str, label: Any, *, timeout_s: float = 5.0) -> Verdict:
    """Compares the answer in "Final Answer: The final answer is X. I hope it is correct." with the label.

    Without that sentence the whole completion has to be the answer, in Minerva's normal form, which keeps the first
    formula of what follows the last "=". Only the last 20,000 characters are read. Label: LaTeX, or a list of
    answers of which any will do. Value: 1 if both have the same normal form by MATH's own scorer, or sympy
    simplifies their difference to 0, else 0. Unscorable when comparing takes longer than `timeout_s`.
    """
    text = tail(completion)
    announced = minerva_answer(text)
    answer = minerva_form(text if announced is None else announced)
    wanted = acceptable_texts(label)
    if any(math_equality.equal_as_text(answer, gold) for gold in wanted):
        return Verdict(1.0, answer)
    check_depth(answer)
    with deadline(timeout_s, "comparing the answer with the label"):
        return Verdict(float(any(math_equality.equal_for_sympy(answer, gold) for gold in wanted)), answer)
