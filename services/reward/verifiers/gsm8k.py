"""The last number of a completion (GSM8K, arXiv:2110.14168)."""

import re
from decimal import Decimal
from typing import Any, Literal

from services.reward.common.text import number_form
from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section

_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
# Separators of thousands, in addition to the comma: LaTeX's {,} \, ,\! and ~, and no-break spaces. An ordinary space
# also separates numbers.
_COMMA = r"(?:\{(?:,|\\[,;: ]|~)(?:\\!)?\}(?:\\!)?|,\\!|\\!,|\\mathord\{,\})"
_SPACE = r"(?:\\[,;:! ]|\\thinspace\s?|~|&(?:nbsp|thinsp|#160|#8239);|[\u00a0\u2005-\u200a\u202f])"
_GROUPED = re.compile(rf"(?<![0-9.])[0-9]{{1,3}}(?:(?:{_COMMA}|{_SPACE}|,)[0-9]{{3}})+(?![0-9])")
_NO_DIGITS = re.compile("[^0-9]+")
# The part before the tail of a number that is grouped in another way: 1'000, 1_000, 12{,}5, 1.234,56, 10,00,000.
_TAIL = re.compile(rf"(?:[0-9](?:{_COMMA}|['\u2019_])|[0-9]\.[0-9]{{3}},|[0-9],(?=0[0-9]))([0-9]+(?:\.[0-9]+)?)\Z")
_LONGEST_NUMBER = 500
"""Number of characters, up to the last digit, that are searched for the last number."""
_LONGEST_SPACE = 14
"""Number of characters of the longest separator with the digit before it."""
_CURRENCY = r"(?:\\?\$|[€£¥₹₩₽₺₪₫฿])"
# The dot of "Rs.500" is not a decimal point.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|(?<![A-Za-z])\.[0-9]+")
# Minus signs are the hyphen, U+2212 and the en dash. After a word, a number or a bracket, an en dash, or any of them
# before a currency, is not a minus sign, as in "$10-$15". At the start of a line the hyphen before a currency and the
# en dash are marks of a list.
_SIGN = re.compile(
    rf"([-+\u2212]|(?<![\w)$€£¥₹])(?:\u2212|(?<!\n)[-\u2013]){_CURRENCY}|\+{_CURRENCY}|(?<![\w)$\n])\u2013)\Z"
)
_PLAIN_NUMBER = re.compile(rf"{_CURRENCY}?[-+\u2212]?{_CURRENCY}?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+){_CURRENCY}?")
_CURRENCIES = re.compile(_CURRENCY)
# Commas as open-instruct reads them: each comma consumes its neighbors, and digits may be of any script.
_ANY_COMMA = re.compile(r"(\d),(\d)")
_SIGNED_NUMBER = re.compile(r"[-+]?\d*\.\d+|[-+]?\d+")
_SOLUTION_MARK = "####"


class Gsm8kOptions(Section):
    equality: Literal["number", "text"] = "number"
    """How the last number is compared with the label. With `number`, 5.0 equals 5. With `text`, the last number must
    equal the label letter for letter, as in open-instruct, so 5.0 does not equal 5; every comma between digits is
    dropped first."""


def verify(completion: str, label: Any, options: Gsm8kOptions = Gsm8kOptions()) -> Verdict:
    """Compares the last number of the completion with the label.

    Label: a number, as text or number; a whole GSM8K solution, of which the part after "####" counts; or a list of
    these. Value: 1 if the numbers are equal, else 0. 5.0 equals 5. Separators of thousands are dropped: the comma,
    those of LaTeX such as {,} and \\,, and no-break and thin spaces; the tail of a number that is grouped in any other
    way, 1'000 or 1_000, equals nothing. A minus sign, "-" or "\u2212", belongs to the number right after it. Before a
    currency sign, as in -$5, it belongs to the number too, unless it stands between two numbers or begins a line. A
    number with a plus sign is the tail of a sum that was not worked out, and equals nothing.

    With `equality` = "text", open-instruct's rule, every comma between digits is dropped. Then the last number, or the
    whole text if it has no number, must equal the label letter for letter, ignoring case.
    """
    if options.equality == "text":
        return _compare_as_text(completion, acceptable_texts(label))
    wanted = [_label_number(text) for text in acceptable_texts(label)]
    last = _last_number(completion)
    if last is None:
        return Verdict(0.0, "no plain number", answer="")
    correct = not last.startswith("+") and Decimal(last) in wanted
    return Verdict(float(correct), last, number_form(last))


def _last_number(text: str) -> str | None:
    """Returns the last number with its sign, in the form of a `Decimal`; None if there is none, or if only its tail is
    readable."""
    end = max(map(text.rfind, "0123456789")) + 1
    text = _without_separators(text[max(end - _LONGEST_NUMBER, 0) : end])
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    number: str = numbers[-1]
    start = len(text) - len(number)
    if _TAIL.search(text, max(start - _LONGEST_SPACE, 0), start + len(number)):
        return None
    sign = _SIGN.search(text, max(start - 4, 0), start)
    return number if sign is None else f"{'+' if sign[1][0] == '+' else '-'}{number}"


def _without_separators(text: str) -> str:
    """Returns the text without separators of thousands."""
    if not text.isascii() or "\\" in text or "{,}" in text or "~" in text or "&" in text:
        text = _GROUPED.sub(lambda found: _NO_DIGITS.sub("", found[0]), text)
    return _THOUSANDS.sub("", text)


def _compare_as_text(completion: str, wanted: list[str]) -> Verdict:
    text = _ANY_COMMA.sub(r"\1\2", completion)
    numbers = _SIGNED_NUMBER.findall(text)
    answer = numbers[-1] if numbers else text
    return Verdict(float(answer.lower() in {text.lower() for text in wanted}), answer, answer.lower())


def _label_number(text: str) -> Decimal:
    answer = _without_separators(text.rpartition(_SOLUTION_MARK)[2].strip())
    if not _PLAIN_NUMBER.fullmatch(answer):
        raise Unscorable(f"the label has no plain number: {answer!r:.80}")
    return Decimal(_CURRENCIES.sub("", answer).replace("\u2212", "-"))


VERIFIER = Verifier(
    verify, values="1 or 0", options=Gsm8kOptions, same_answers="equal numbers, or the same text as `equality` says"
)
