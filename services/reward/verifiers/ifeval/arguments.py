"""The arguments of one constraint, read from a label."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from services.reward.common.language import language_codes
from services.reward.common.verdict import Unscorable

LESS_THAN, AT_LEAST = "less than", "at least"


class Arguments:
    """The kwargs of one constraint, read by type, without defaults. A method whose value is missing or of the wrong
    type raises `Unscorable`, which names the constraint, the field and the value."""

    def __init__(self, owner: str, values: Mapping[str, Any], *, strict_wording: bool = False) -> None:
        self._owner = owner
        self._values = values
        self.strict_wording = strict_wording
        """Whether to judge by the wording of the instruction wherever open-instruct's checker differs from it."""

    def text(self, name: str) -> str:
        """Returns a nonblank text, without outer white space."""
        value = self._get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.invalid(name, "must be a text")
        return value.strip()

    def exact_text(self, name: str) -> str:
        """Returns a nonempty text, unchanged."""
        value = self._get(name)
        if not isinstance(value, str) or not value:
            raise self.invalid(name, "must be a text")
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a nonempty list of nonempty texts."""
        value = self._get(name)
        is_list = isinstance(value, list | tuple) and bool(value)
        if not is_list or not all(isinstance(item, str) and item for item in value):
            raise self.invalid(name, "must be a list of texts")
        return list(value)

    def letter(self, name: str) -> str:
        value = self.text(name)
        if len(value) != 1:
            raise self.invalid(name, "must be one character")
        return value

    def number(self, name: str, *, minimum: int = 0) -> int:
        """Returns a whole number. 3.0, the form in which 3 arrives over the wire, is accepted."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < minimum:
            raise self.invalid(name, f"must be a whole number of at least {minimum}")
        return int(value)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self._get(name)
        if value not in allowed:
            raise self.invalid(name, f"must be one of {', '.join(map(repr, allowed))}")
        return str(value)

    def language(self, name: str) -> str:
        """Returns the code of a detectable language."""
        code = self.text(name)
        if code not in (codes := language_codes()):
            raise self.invalid(name, f"must be one of {', '.join(sorted(codes))}")
        return code

    def holds(self, relation: str, number: str) -> Callable[[int], bool]:
        """Returns a predicate that checks a count by the label's relation ("less than", "at least") and number."""
        less = self.choice(relation, (LESS_THAN, AT_LEAST)) == LESS_THAN
        wanted = self.number(number)
        return lambda count: count < wanted if less else count >= wanted

    def keyword(self, name: str) -> re.Pattern[str]:
        return self.pattern(name, self.text(name))

    def pattern(self, name: str, keyword: str) -> re.Pattern[str]:
        """Returns a pattern that finds a keyword in any case. The keyword is a regular expression and also matches
        inside words, as in open-instruct; with `strict_wording`, it is plain text and must match a whole word."""
        if self.strict_wording:
            return re.compile(rf"(?<!\w){re.escape(keyword)}(?!\w)", re.IGNORECASE)
        return self.expression(name, keyword, flags=re.IGNORECASE)

    def expression(self, name: str, expression: str, *, flags: int = 0) -> re.Pattern[str]:
        """Compiles an expression that contains the value of `name`."""
        try:
            return re.compile(expression, flags)
        except (re.error, OverflowError, RecursionError) as error:
            why = f"is not a regular expression ({error}); strict_wording takes it as text"
            raise self.invalid(name, why) from None

    def _get(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise Unscorable(f"{self._owner}: the label has no {name}, and there is no default")
        return value

    def invalid(self, name: str, cure: str) -> Unscorable:
        """Returns the error for a value."""
        return Unscorable(f"{self._owner}: {name} {cure} (found: {self._values.get(name)!r:.80})")
