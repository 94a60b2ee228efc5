"""Mathematical equality of the final answer, by math-verify (github.com/huggingface/Math-Verify)."""

import importlib
import re
from functools import lru_cache
from typing import Any

from services.reward.deadline import deadline
from services.reward.math_text import check_depth, joined_thousands, last_boxed, tail, without_box
from services.reward.text import last_between
from services.reward.verdict import Unscorable, Verdict, acceptable_texts

# A label that says itself where its answer stands.
_DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


def load() -> None:
    """Imports what judging needs; takes a second."""
    importlib.import_module("math_verify")
    parser = importlib.import_module("math_verify.parser")
    # Samples of a group repeat each other's answers, and parsing LaTeX takes milliseconds. math-verify keeps 20, too
    # few for the groups that are scored at once.
    parser.parse_latex_cached = lru_cache(maxsize=4096)(parser.parse_latex_cached.__wrapped__)  # type: ignore[attr-defined]


def verify(
    completion: str,
    label: Any,
    *,
    extraction: tuple[str, ...] = ("latex", "expr"),
    boxed_match_priority: int = 50,
    float_rounding: int = 6,
    strict: bool = True,
    allow_set_relation_comparison: bool = False,
    answer_tags: bool = False,
    timeout_s: float = 5.0,
) -> Verdict:
    """Compares the completion's last answer (boxed, in LaTeX, or a plain expression) with the label.

    Of several boxes that stand together math-verify makes one answer; that or the last box alone has to be equal. A
    last box that is the label letter for letter is, whatever it says.
    With `answer_tags` only the last <answer>...</answer> is read, where there is one. Only the last 20,000 characters
    are read. Label: LaTeX with or without delimiters, or a whole solution with a
    boxed answer; or a list of those, of which any will do. Value: 1 if math-verify finds them equal (numerically to
    `float_rounding` decimals, else symbolically; sets and intervals by their elements), else 0. Unscorable when
    reading and comparing takes longer than `timeout_s`, or the answer is nested deeper than can be read.
    """
    rules = (tuple(extraction), boxed_match_priority)
    wanted = acceptable_texts(label)
    with deadline(timeout_s, "comparing the answer with the label"):
        golds = [_gold(text, rules) for text in wanted]
        if not all(golds):
            raise Unscorable(f"the label holds no mathematics: {label!r:.80}")
        text = joined_thousands(tail(_tagged(completion) if answer_tags else completion))
        box = last_boxed(text)
        if box is not None and box.startswith("\\boxed") and without_box(box) in wanted:
            return Verdict(1.0, without_box(box))
        check_depth(text)
        for candidate in _candidates(text):
            answer = _parsed(candidate, rules)
            if answer and _equals_any(golds, answer, float_rounding, strict, allow_set_relation_comparison):
                return Verdict(1.0, _as_written(answer))
        return Verdict(0.0, _as_written(answer) if answer else "no answer found")


def _tagged(completion: str) -> str:
    """The last <answer>...</answer> as mathematics, or all without one."""
    answer = last_between(completion, "<answer>", "</answer>")
    if answer is None:
        return completion
    return answer if _DELIMITED.search(answer) else f"${answer.strip()}$"


def _candidates(text: str) -> list[str]:
    """The whole text, and where it has several boxes the last of them."""
    box = last_boxed(text) if text.count("\\boxed") > 1 else None
    return [text] if box is None else [text, f"$\\boxed{{{without_box(box)}}}$"]


def _equals_any(golds: list[list[Any]], answer: list[Any], float_rounding: int, strict: bool, sets: bool) -> bool:
    from math_verify import verify as equal

    return any(
        equal(
            gold,
            answer,
            float_rounding=float_rounding,
            strict=strict,
            allow_set_relation_comp=sets,
            # Its own time limit swallows what it interrupts; the deadline stands for it.
            timeout_seconds=None,
            raise_on_error=False,
        )
        for gold in golds
    )


def _as_written(answer: list[Any]) -> str:
    """The answer as text; printing what it was parsed to can take for ever."""
    return answer[-1] if isinstance(answer[-1], str) else ""


@lru_cache(maxsize=256)
def _gold(label: str, rules: tuple[tuple[str, ...], int]) -> list[Any]:
    """The label parsed, once for all completions of a group: most of the time goes into this."""
    plain = "latex" not in rules[0] or _DELIMITED.search(label)
    return _parsed(label if plain else f"${label}$", rules)


def _parsed(text: str, rules: tuple[tuple[str, ...], int]) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(joined_thousands(text), extraction_config=_targets(*rules), parsing_timeout=None)
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
