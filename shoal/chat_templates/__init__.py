"""Chat templates: the values of `model.chat_template`, which is Jinja text, the path of a file with Jinja text, or one
of these names.

chatml         <|im_start|>role, the message, <|im_end|>: the format of most models
tulu           <|user|> or <|assistant|> on its own line before each message, as Tulu's models expect
tulu_thinker   as tulu; the answer begins with <think>
tulu_r1        as tulu_thinker, after the instruction of r1_zero; earlier answers lose their thoughts
zephyr         as tulu, with the end-of-sequence token after every message
simple         the bare messages, one per line
simple_space   the bare messages, separated by spaces
simple_chat    "User: " or "Assistant: " before each message, separated by empty lines; nothing begins the answer
r1_zero        asks for <think>...</think> <answer>...</answer>; the answer begins with "Assistant: <think>"
r1_zero_plain  as r1_zero, but the answer begins with "Assistant:"
r1_zero_boxed  as r1_zero; every message asks for a result in \\boxed{}
answer_line    the bare messages; asks for a last line "Answer: ..."
code_block     the bare messages; asks for a program in ```python
"""

from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.paths import local_path, why_unread

FIELD = "model.chat_template"
_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))
"""Names of the templates that come with Shoal."""


def template_text(value: str, field: str = FIELD) -> str:
    """Returns the Jinja text for a value of `model.chat_template`, or of a similar field. Raises `InvalidArgument` for
    a value that is neither Jinja text, nor a name, nor a readable file on this machine."""
    if is_file_name(value):
        text = _read(local_path(value, field), value, field)
        if not _is_text(text):
            raise InvalidArgument(f"{field}: {value} is no chat template: it contains neither {{{{ nor {{%")
        return text
    return _read(_FOLDER / f"{value}.jinja", value, field) if value in NAMES else value


def is_file_name(value: str) -> bool:
    """Returns whether a value can only be the path of a file: it contains no Jinja and is no name."""
    return not _is_text(value) and value not in NAMES


def _is_text(value: str) -> bool:
    return "{{" in value or "{%" in value


def _read(path: Path, value: str, field: str) -> str:
    try:
        if path.is_file():  # A device may never end.
            return path.read_text(encoding="utf-8")
        why = "the file does not exist on this machine"
    except (OSError, UnicodeDecodeError) as error:
        why = f"the file cannot be read: {why_unread(error)}"
    raise InvalidArgument(
        f"{field}: {value!r:.100} is neither Jinja text, which contains {{{{ or {{%, nor the name of a template "
        f"({', '.join(NAMES)}), and as a path: {why}"
    )
