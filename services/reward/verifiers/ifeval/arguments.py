"""What a label says about one constraint."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from services.reward.language import language_codes
from services.reward.verdict import Unscorable

LESS_THAN, AT_LEAST = "less than", "at least"


class Arguments:
    """The kwargs of one constraint, each read with the type that it must have.

    Every method raises `Unscorable`, naming the constraint, the field and its value, where the label lacks what is
    asked for. Nothing is ever filled in.
    """

    def __init__(self, owner: str, values: Mapping[str, Any], *, strict_wording: bool = False) -> None:
        self._owner = owner
        self._values = values
        self.strict_wording = strict_wording
        """Judge by what the instruction says, where open-instruct's checker judges something else."""

    def text(self, name: str) -> str:
        """A text that is not blank, white space around it removed."""
        value = self._get(name)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, "must be a text")
        return value.strip()

    def exact_text(self, name: str) -> str:
        """A text that is not empty, as it is."""
        value = self._get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "must be a text")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts, not empty."""
        value = self._get(name)
        if (
            not isinstance(value, list | tuple)
            or not value
            or not all(isinstance(item, str) and item for item in value)
        ):
            raise self._wrong(name, "must be a list of texts")
        return list(value)

    def letter(self, name: str) -> str:
        """One character."""
        value = self.text(name)
        if len(value) != 1:
            raise self._wrong(name, "must be one character")
        return value

    def number(self, name: str, *, least: int = 0) -> int:
        """A whole number; 3.0, as it comes from the wire, is 3."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < least:
            raise self._wrong(name, f"must be a whole number from {least}")
        return int(value)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of some texts."""
        value = self._get(name)
        if value not in allowed:
            raise self._wrong(name, f"must be one of {', '.join(map(repr, allowed))}")
        return str(value)

    def language(self, name: str) -> str:
        """The code of a language that can be told."""
        code = self.text(name)
        if code not in (codes := language_codes()):
            raise self._wrong(name, f"must be one of {', '.join(sorted(codes))}")
        return code

    def holds(self, relation: str, number: str) -> Callable[[int], bool]:
        """Whether a count stands in the relation ("less than", "at least") to the number that the label asks for."""
        less = self.choice(relation, (LESS_THAN, AT_LEAST)) == LESS_THAN
        wanted = self.number(number)
        return lambda count: count < wanted if less else count >= wanted

    def keyword(self, name: str) -> re.Pattern[str]:
        """What finds a keyword; see `pattern`."""
        return self.pattern(name, self.text(name))

    def pattern(self, name: str, keyword: str) -> re.Pattern[str]:
        """Finds a keyword, whatever its case.

        The keyword is a regular expression and is found inside words too, as in open-instruct. Strictly worded it is
        a text and must be a whole word.
        """
        if self.strict_wording:
            return re.compile(rf"(?<!\w){re.escape(keyword)}(?!\w)", re.IGNORECASE)
        return self.expression(name, keyword, flags=re.IGNORECASE)

    def expression(self, name: str, expression: str, *, flags: int = 0) -> re.Pattern[str]:
        """Compiles an expression that has `name`'s value in it."""
        try:
            return re.compile(expression, flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise self._wrong(name, f"is no regular expression ({error}); strict_wording takes it as text") from None

    def invalid(self, name: str, cure: str) -> Unscorable:
        """The error for a value that is wrong beside the others."""
        return self._wrong(name, cure)

    def _get(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise Unscorable(f"{self._owner}: the label has no {name}, and none is made up")
        return value

    def _wrong(self, name: str, cure: str) -> Unscorable:
        return Unscorable(f"{self._owner}: {name} {cure} (found: {self._values.get(name)!r:.80})")
