"""Mathematical equality of the final answer, by math-verify (github.com/huggingface/Math-Verify)."""

import importlib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from services.reward.common.answers import math_form
from services.reward.common.deadline import deadline
from services.reward.common.math_numbers import are_apart, bases, is_too_large
from services.reward.common.math_text import check_depth, in_common_notation, last_boxed, tail, without_box
from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.section import Section

# A label that marks its answer.
_DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


class MathOptions(Section):
    extraction: list[Literal["latex", "expr", "string"]] = Field(default=["latex", "expr"], min_length=1)
    """Forms in which answer and label are looked for: LaTeX, plain expressions, single letters A to D."""
    boxed_match_priority: int = Field(default=50, ge=-1)
    """Rank of boxed answers among the other forms of LaTeX, first at 0; -1 gives them no precedence."""
    float_rounding: int = Field(default=6, ge=0)
    """Decimals to which numbers are compared; for numbers below 0.001, significant digits."""
    strict: bool = True
    """Whether names of variables matter, and sets differ from tuples."""
    allow_set_relation_comparison: bool = False
    """Whether an inequality equals the interval or set of its solutions if the label is the interval or set."""
    answer_tags: bool = False
    """Read only the last `<answer>...</answer>`, if there is one, also without LaTeX around its answer: for prompts
    that ask for R1's format."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for reading and comparing one answer; past it the completion is UNSCORABLE. Keep it below
    `reward.timeout_s`, which kills the process."""


def load() -> None:
    """Imports math-verify; takes a second."""
    grader = importlib.import_module("math_verify.grader")
    parser = importlib.import_module("math_verify.parser")
    # Samples of a group repeat each other's answers, and parsing LaTeX takes milliseconds. math-verify keeps 20, too
    # few for the groups that are scored at once.
    parser.parse_latex_cached = lru_cache(maxsize=4096)(parser.parse_latex_cached.__wrapped__)  # type: ignore[attr-defined]
    if grader.sympy_numeric_eq.__module__ != __name__:
        grader.sympy_numeric_eq = _also_if_small(grader.sympy_numeric_eq)  # type: ignore[attr-defined]


def _also_if_small(equal: Callable[[Any, Any, int, int], bool]) -> Callable[[Any, Any, int, int], bool]:
    """Adds to math-verify's comparison of numbers, which rounds to decimals, that small ones agree in their digits."""

    def numeric_eq(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
        return equal(a, b, float_rounding, numeric_precision) and not are_apart(a, b, float_rounding)

    return numeric_eq


def verify(completion: str, label: Any, options: MathOptions = MathOptions()) -> Verdict:
    """Compares the completion's last answer (boxed, in LaTeX, or a plain expression) with the label.

    math-verify reads several boxes that stand together as one answer; that answer or the last box alone must be equal.
    A last box that equals the label letter for letter always counts. With `answer_tags` only the last
    <answer>...</answer> is read, if there is one. Only the last 20,000 characters are read. Label: LaTeX with or
    without delimiters, or a whole solution with a boxed answer; or a list of accepted ones. Value: 1 if math-verify
    finds them equal (numerically to `float_rounding` decimals, or significant digits below 0.001, else symbolically;
    sets and intervals by their elements) and the bases of their numbers are the same, else 0. A number of more than a
    million digits must be written like the label. Unscorable if reading and comparing takes longer than `timeout_s`, or
    the answer is nested too deeply to be read.
    """
    rules = (tuple(options.extraction), options.boxed_match_priority)
    wanted = acceptable_texts(label)
    with deadline(options.timeout_s, "comparing the answer with the label"):
        golds = [_gold(text, rules) for text in wanted]
        if not all(golds):
            raise Unscorable(f"the label contains no mathematics: {label!r:.80}")
        text = tail(_tagged(completion) if options.answer_tags else completion)
        box = last_boxed(text)
        if box is not None and box.startswith("\\boxed") and without_box(box) in wanted:
            return _verdict(1.0, without_box(box))
        check_depth(text)
        for candidate in _candidates(text):
            answer = _parsed(candidate, rules)
            if answer and _equals_any(golds, answer, options):
                return _verdict(1.0, _as_written(answer))
        return _verdict(0.0, _as_written(answer)) if answer else Verdict(0.0, "no answer found", answer="")


def _verdict(value: float, answer: str) -> Verdict:
    return Verdict(value, answer, math_form(without_box(answer) if answer.startswith("\\boxed") else answer))


def _tagged(completion: str) -> str:
    """Returns the last <answer>...</answer> as mathematics, or the whole completion without one."""
    answer = last_between(completion, "<answer>", "</answer>")
    if answer is None:
        return completion
    return answer if _DELIMITED.search(answer) else f"${answer.strip()}$"


def _candidates(text: str) -> list[str]:
    """Returns the whole text and, if it has several boxes, the last of them."""
    box = last_boxed(text) if text.count("\\boxed") > 1 else None
    return [text] if box is None else [text, f"$\\boxed{{{without_box(box)}}}$"]


def _equals_any(golds: list[list[Any]], answer: list[Any], options: MathOptions) -> bool:
    if is_too_large(answer[0]):
        return any(gold[0] == answer[0] for gold in golds)
    return any(_equals(gold, answer, options) for gold in golds if not is_too_large(gold[0]))


def _equals(gold: list[Any], answer: list[Any], options: MathOptions) -> bool:
    if bases(_as_written(gold)) != bases(_as_written(answer)):
        return False
    if _equal(gold, answer, options):
        return True
    complex_gold, complex_answer = _with_imaginary_unit(gold), _with_imaginary_unit(answer)
    is_complex = complex_gold is not gold or complex_answer is not answer
    return is_complex and _equal(complex_gold, complex_answer, options)


def _with_imaginary_unit(parsed: list[Any]) -> list[Any]:
    """Reads "i" as the imaginary unit, unless it is all that is written: math-verify takes it for a letter."""
    expression = parsed[0]
    letters = [symbol for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"]
    if not letters or expression in letters:
        return parsed
    from sympy import I

    try:
        return [expression.subs(dict.fromkeys(letters, I)), *parsed[1:]]
    except (TypeError, ValueError, AttributeError):  # An order, as of i < 5 or of an interval's ends: "i" is a letter.
        return parsed


def _equal(gold: list[Any], answer: list[Any], options: MathOptions) -> bool:
    from math_verify import verify as equal

    are_equal: bool = equal(
        gold,
        answer,
        float_rounding=options.float_rounding,
        strict=options.strict,
        allow_set_relation_comp=options.allow_set_relation_comparison,
        # math-verify's own time limit swallows the exception that interrupts it; `deadline` does not.
        timeout_seconds=None,
        raise_on_error=False,
    )
    return are_equal


def _as_written(answer: list[Any]) -> str:
    """Returns the answer as text; printing the parsed expression can take forever."""
    return answer[-1] if isinstance(answer[-1], str) else ""


@lru_cache(maxsize=256)
def _gold(label: str, rules: tuple[tuple[str, ...], int]) -> list[Any]:
    """Parses the label once for all completions of a group: parsing takes most of the time."""
    plain = "latex" not in rules[0] or _DELIMITED.search(label)
    return _parsed(label if plain else f"${label}$", rules)


def _parsed(text: str, rules: tuple[tuple[str, ...], int]) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(tail(in_common_notation(text)), extraction_config=_targets(*rules), parsing_timeout=None)
    return found


@lru_cache(maxsize=16)
def _targets(extraction: tuple[str, ...], boxed_match_priority: int) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, StringExtractionConfig

    kinds = {
        "latex": LatexExtractionConfig(boxed_match_priority=boxed_match_priority),
        "expr": ExprExtractionConfig(),
        "string": StringExtractionConfig(),
    }
    return [kinds[name] for name in extraction]


VERIFIER = Verifier(
    verify,
    values="1 or 0",
    options=MathOptions,
    load=load,
    same_answers="equal numbers, or the same normal form by MATH's own scorer",
)
