"""JSON in data. Duplicate keys are errors, and a number keeps its text."""

from decimal import Decimal
from typing import Any

from shoal.parsing import parse_json, unique_keys


class WrittenNumber(float):
    """A number with a fraction or an exponent, and the text of the number."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number

    @property
    def is_exact(self) -> bool:
        """Whether the double equals the number in the text: true for 18.90, false for 0.12345678901234567890."""
        try:
            return Decimal(self.text) == Decimal(repr(float(self)))
        except ArithmeticError:  # The exponent is too large for a decimal.
            return False

    @property
    def is_of_program(self) -> bool:
        """Whether a program wrote the text, in a form that no person chose: 72.0 for 72, 1e-05 or 1E-5 for 0.00001."""
        has_exponent = "e" in self.text.lower()
        return self.is_exact if has_exponent else self.text == repr(float(self))


def parse_json_text(text: str) -> Any:
    """Parses a JSON text of the data. Raises `ValueError` for other texts, and for a key that an object has twice: one
    of the two values would be lost."""
    return parse_json(text, object_pairs_hook=unique_keys, parse_float=WrittenNumber)
