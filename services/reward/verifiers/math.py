"""Mathematical equality of the final answer, with math-verify (github.com/huggingface/Math-Verify)."""

import re
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from services.reward.common.deadline import within
from services.reward.common.math import algebra, equality
from services.reward.common.math.algebra import Rules
from services.reward.common.math.normal_forms import check_depth, math_form, tail
from services.reward.common.math.notation import in_latex_signs
from services.reward.common.math.reading import Reading, read
from services.reward.common.math.stated.answers import stated_answers, stated_word
from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section

# A label that marks its answer.
_DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


class MathOptions(Section):
    extraction: list[Literal["latex", "expr", "string"]] = Field(default=["latex", "expr"], min_length=1)
    """Forms in which the verifier looks for answer and label: LaTeX, plain expressions, single letters A to D."""
    boxed_match_priority: int = Field(default=50, ge=-1)
    """Rank of boxed answers. Below 50, boxed answers come before announced answers; above 50, after announced answers.
    At 50 the later answer counts. With -1, boxes are read like other formulas."""
    float_rounding: int = Field(default=6, ge=0)
    """Number of decimals to which numbers are compared. For numbers below 0.001, the number of significant digits."""
    strict: bool = True
    """Whether names of variables matter. If true, a tuple is also no answer to a label that is a set."""
    allow_set_relation_comparison: bool = False
    """Whether an inequality equals the interval or set of its solutions if the label is such an interval or set."""
    answer_tags: bool = False
    """Read only the last `<answer>...</answer>` if there is one, also if the answer in the tags has no LaTeX around it.
    Suits prompts that ask for R1's format."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for reading and comparing one answer. After this time the completion is UNSCORABLE. Keep this time
    below `reward.timeout_s`, which kills the process."""


def verify(completion: str, label: Any, options: MathOptions = MathOptions()) -> Verdict:
    """Compares the completion's last stated answer (boxed, announced, a formula, or a plain expression) with the label.

    Boxes side by side are one answer. A last box that is cut off or has no mathematics is no answer. With `answer_tags`
    only the last <answer>...</answer> is read, if there is one. Only the last 20,000 characters are read. Label: LaTeX
    with or without delimiters, or a whole solution with a boxed answer; or a list of these. Value: 1 if both are equal:
    rational numbers exactly, or as decimals rounded to `float_rounding` digits; other numbers by their value; sets,
    intervals and expressions by math-verify; units, moduli and bases of numbers as they are written; else 0. What is
    left to be computed, such as an integral, and a number of more than 100,000 digits must be written as in the label.
    Unscorable if reading and comparing takes longer than `timeout_s`, or the answer is nested too deeply to be read.
    """
    wanted = acceptable_texts(label)
    rules = Rules(options.float_rounding, options.strict, options.allow_set_relation_comparison)

    def compare() -> Verdict:
        golds = [_gold(text) for text in wanted]
        if not all(golds):
            raise Unscorable(f"the label contains no mathematics: {label!r:.80}")
        text = tail(_tagged(completion) if options.answer_tags else completion)
        check_depth(text)
        answers = stated_answers(in_latex_signs(text), options.boxed_match_priority, options.extraction)
        readings = [read(answer) for answer in answers]
        for answer in readings:
            if any(gold and equality.are_equal(gold, answer, rules) for gold in golds):
                return _verdict(1.0, answer.value)
        word = stated_word(in_latex_signs(text)) if any(gold and gold.word for gold in golds) else ""
        if word and any(gold and gold.word.lower() == word.lower() for gold in golds):
            return _verdict(1.0, word)
        return _verdict(0.0, readings[0].value) if readings else Verdict(0.0, "no answer found", answer="")

    return within(options.timeout_s, "comparing the answer with the label", compare)


def _verdict(value: float, answer: str) -> Verdict:
    return Verdict(value, answer, math_form(answer))


def _tagged(completion: str) -> str:
    """Returns the last <answer>...</answer> as mathematics, or the whole completion without one."""
    answer = last_between(completion, "<answer>", "</answer>")
    if answer is None:
        return completion
    return answer if _DELIMITED.search(answer) else f"\\boxed{{{answer.strip()}}}"


@lru_cache(maxsize=256)
def _gold(label: str) -> Reading | None:
    """Reads the label once for all completions of a group; None if it has no answer."""
    if _DELIMITED.search(label):
        answers = stated_answers(in_latex_signs(label))
        if not answers:
            return None
        label = answers[0]
    gold = read(label)
    return gold if gold.text else None


VERIFIER = Verifier(
    verify,
    values="1 or 0",
    options=MathOptions,
    load=algebra.load,
    same_answers="equal numbers, or the same normal form by MATH's own scorer",
)
