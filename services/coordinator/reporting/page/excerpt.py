"""Texts that a model wrote, as a page may show them: no more of them than a reader wants. The template escapes HTML."""

from dataclasses import dataclass

from shoal.visible_text import visible

MAX_CHARS = 20_000
"""Of a longer text its beginning and end are shown."""
SHORT_CHARS, SHORT_LINES = 400, 8
"""A text within both limits is not folded."""
_PREVIEW_CHARS = 90


@dataclass(frozen=True)
class Excerpt:
    """A text as it is shown."""

    text: str
    preview: str
    """Its beginning and end in one line, if it is folded; else empty."""
    num_chars: int
    """Characters of the whole text."""


def excerpt(text: str) -> Excerpt:
    """Cuts a text that is too long for a page, and makes all its characters visible."""
    shown = visible(text)
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        left_out = f"{len(text) - 2 * half:,} characters left out"
        shown = f"{visible(text[:half])}\n\n[… {left_out} …]\n\n{visible(text[-half:])}"
    is_short = len(shown) <= SHORT_CHARS and shown.count("\n") < SHORT_LINES
    return Excerpt(shown, "" if is_short else _preview(shown), len(text))


def _preview(text: str) -> str:
    """Puts the beginning and the end of a text in one line, whole words where there are spaces."""
    words = " ".join(text.split())
    if len(words) <= 2 * _PREVIEW_CHARS:
        return words
    first, last = words[:_PREVIEW_CHARS].rsplit(" ", 1)[0], words[-_PREVIEW_CHARS:].split(" ", 1)[-1]
    return f"{first} … {last}"
