"""What a test reads out of a text for people, so that the sentence around it may change."""

import re


def numbers_in(text: str) -> list[str]:
    """Returns the numbers of a text as they are written, in order: "2 of 1,400 (-0.5 to 61.0%)" has four."""
    return re.findall(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?%?(?![\w])", text)


def has_all(text: str, *parts: str) -> bool:
    return all(part in text for part in parts)
