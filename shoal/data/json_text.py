"""JSON in data: each key counts, and a number keeps the text that it was written as."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from shoal.parsing import parse_json


class WrittenNumber(float):
    """A number with a fraction or an exponent, with its text."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number

    @property
    def is_exact(self) -> bool:
        """Whether the double is all that the text says: 18.90 is 18.9, and 0.12345678901234567890 is more."""
        try:
            return Decimal(self.text) == Decimal(repr(float(self)))
        except ArithmeticError:  # An exponent that no decimal has.
            return False

    @property
    def is_of_program(self) -> bool:
        """Whether a program writes the number so, which nobody chose: 72.0 for 72, 1e-05 or 1E-5 for 0.00001."""
        has_exponent = "e" in self.text.lower()
        return self.is_exact if has_exponent else self.text == repr(float(self))


def parse_json_text(text: str) -> Any:
    """Returns the values of a JSON text of the data. Raises `ValueError`, also for a key that an object has twice: one
    of the two values would be lost."""
    return parse_json(text, object_pairs_hook=_unique, parse_float=WrittenNumber)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r:.80} is there twice; one of the two values would be lost")
            seen.add(name)
    return values
