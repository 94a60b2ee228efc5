"""The last number of a completion (GSM8K, arXiv:2110.14168)."""

import re
from decimal import Decimal
from typing import Any, Literal

from services.reward.common.answers import number_form
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.section import Section

_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
# The dot of "Rs.500" is no decimal point.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|(?<![A-Za-z])\.[0-9]+")
# Minus signs are the hyphen, U+2212 and the en dash. An en dash, or any before a dollar sign, is none after a word, a
# number or a bracket, as in "$10-$15"; at the start of a line the hyphen before a dollar sign and the en dash are marks
# of a list.
_SIGN = re.compile(r"([-+\u2212]|(?<![\w)$])(?:\u2212|(?<!\n)[-\u2013])\\?\$|\+\\?\$|(?<![\w)$\n])\u2013)\Z")
_PLAIN_NUMBER = re.compile(r"\$?[-+\u2212]?\$?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
# As open-instruct reads them: neighbors of a comma are used up by it, and digits are those of any script.
_ANY_COMMA = re.compile(r"(\d),(\d)")
_SIGNED_NUMBER = re.compile(r"[-+]?\d*\.\d+|[-+]?\d+")
_SOLUTION_MARK = "####"


class Gsm8kOptions(Section):
    equality: Literal["number", "text"] = "number"
    """`number`: 5.0 equals 5. `text`: the last number equals the label letter for letter, as in open-instruct, where
    5.0 does not equal 5; every comma between digits is dropped."""


def verify(completion: str, label: Any, options: Gsm8kOptions = Gsm8kOptions()) -> Verdict:
    """Compares the last number of the completion with the label.

    Label: a number, as text or number; a whole GSM8K solution, of which the part after "####" counts; or a list of
    accepted ones. Value: 1 if the numbers are equal, else 0. Thousands separators are dropped and 5.0 equals 5. A
    minus sign, "-" or "\u2212", belongs to the number that it touches, or whose dollar sign it touches unless it stands
    between two numbers or begins a line. A number with a plus sign is the tail of a sum that was not worked out, and
    equals nothing.

    With `equality` "text" the last number, or the whole text without one, must equal the label letter for letter,
    case aside, and every comma between digits is dropped: open-instruct's rule.
    """
    if options.equality == "text":
        return _compare_as_text(completion, acceptable_texts(label))
    wanted = [_label_number(text) for text in acceptable_texts(label)]
    last = _last_number(completion)
    if last is None:
        return Verdict(0.0, "no number", answer="")
    correct = not last.startswith("+") and Decimal(last) in wanted
    return Verdict(float(correct), last, number_form(last))


def _last_number(text: str) -> str | None:
    """Returns the last number with its sign, written as a `Decimal` is."""
    text = _THOUSANDS.sub("", text)
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    number: str = numbers[-1]
    start = text.rindex(number)
    sign = _SIGN.search(text, max(start - 4, 0), start)
    return number if sign is None else f"{'+' if sign[1][0] == '+' else '-'}{number}"


def _compare_as_text(completion: str, wanted: list[str]) -> Verdict:
    text = _ANY_COMMA.sub(r"\1\2", completion)
    numbers = _SIGNED_NUMBER.findall(text)
    answer = numbers[-1] if numbers else text
    return Verdict(float(answer.lower() in {text.lower() for text in wanted}), answer, answer.lower())


def _label_number(text: str) -> Decimal:
    answer = _THOUSANDS.sub("", text.rpartition(_SOLUTION_MARK)[2].strip())
    if not _PLAIN_NUMBER.fullmatch(answer):
        raise Unscorable(f"the label holds no plain number: {answer!r:.80}")
    return Decimal(answer.replace("$", "").replace("\u2212", "-"))


VERIFIER = Verifier(
    verify, values="1 or 0", options=Gsm8kOptions, same_answers="equal numbers, or the same text as `equality` says"
)
