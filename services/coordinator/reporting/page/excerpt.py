"""Excerpts of texts that a model wrote, short enough for a page. The template escapes HTML."""

from dataclasses import dataclass

from shoal.visible_text import visible

MAX_CHARS = 20_000
"""Most characters shown of a text. A longer text loses its middle."""
SHORT_CHARS, SHORT_LINES = 400, 8
"""A text within both limits is not folded."""
_PREVIEW_CHARS = 90


@dataclass(frozen=True)
class Excerpt:
    """A text as a page shows it."""

    text: str
    preview: str
    """The beginning and end in one line, if the text is folded; else empty."""
    num_chars: int
    """Characters of the whole text."""


def excerpt(text: str) -> Excerpt:
    """Shortens a text for a page, and makes all its characters visible."""
    shown = visible(text)
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        left_out = f"{len(text) - 2 * half:,} characters left out"
        shown = f"{visible(text[:half])}\n\n[… {left_out} …]\n\n{visible(text[-half:])}"
    is_short = len(shown) <= SHORT_CHARS and shown.count("\n") < SHORT_LINES
    return Excerpt(shown, "" if is_short else _preview(shown), len(text))


def _preview(text: str) -> str:
    """Puts the beginning and the end of a text in one line, cut at spaces if there are any."""
    words = " ".join(text.split())
    if len(words) <= 2 * _PREVIEW_CHARS:
        return words
    first, last = words[:_PREVIEW_CHARS].rsplit(" ", 1)[0], words[-_PREVIEW_CHARS:].split(" ", 1)[-1]
    return f"{first} … {last}"
