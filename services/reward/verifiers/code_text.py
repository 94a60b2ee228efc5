"""The program in a completion."""

import re

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
_TAG = re.compile(r"[A-Za-z0-9_+.#-]*\Z")
_PYTHON_TAG = "python"


def program_text(completion: str, *, any_tag: bool = False) -> str:
    """What stands in the last block between triple backticks; the whole text when there is none.

    The tag "python" right after the opening backticks is dropped. Any other, or one after a space, stays in the
    program and breaks it, as in open-instruct; `any_tag` drops whatever word stands alone on the opening line.
    """
    blocks = _FENCED.findall(completion)
    text = blocks[-1] if blocks else completion
    first_line, newline, rest = text.partition("\n")
    if blocks and any_tag and newline and _TAG.match(first_line.strip()):
        text = rest
    elif blocks:
        text = text.removeprefix(_PYTHON_TAG)
    return text.strip()
