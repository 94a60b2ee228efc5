"""Texts of models and verifiers, with every character visible.

Shows what a terminal or HTML would execute or hide: control characters, directions, characters without a shape.
"""

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # Control characters, except tabs and line breaks.
    "\ud800-\udfff\u2028\u2029\ufff9-\ufffb"  # Halves of characters, separators, marks of annotations.
    # Characters that a font may ignore (Unicode's Default_Ignorable_Code_Point): directions of writing, zero width,
    # fillers, tags, variation selectors 17 to 256. Not the joiners and variation selectors 1 to 16, which emoji and
    # scripts need.
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Replaces invisible characters by their code points, such as <U+202E>. Keeps tabs and line breaks."""
    return _UNSEEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text.replace("\r\n", "\n"))
