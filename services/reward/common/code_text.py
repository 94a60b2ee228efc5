"""The program in a completion."""

import re

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
_TAG = re.compile(r"[A-Za-z0-9_+.#-]*\Z")
_PYTHON_TAG = "python"


def program_text(completion: str, *, any_tag: bool = False) -> str:
    """Returns the last block between triple backticks, or the whole text without one.

    Drops the tag "python" right after the opening backticks. Any other tag, or one after a space, stays in the program
    and breaks it, as in open-instruct; `any_tag` drops any single word on the opening line.
    """
    blocks = _FENCED.findall(completion)
    text = blocks[-1] if blocks else completion
    first_line, newline, rest = text.partition("\n")
    if blocks and any_tag and newline and _TAG.match(first_line.strip()):
        text = rest
    elif blocks:
        text = text.removeprefix(_PYTHON_TAG)
    return text.strip()
