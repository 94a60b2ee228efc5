"""What `model.chat_template` may name: Jinja text, a file of it, or one of the templates beside this module.

chatml         <|im_start|>role, the message, <|im_end|>: what most models are taught
tulu           <|user|> and <|assistant|> on lines of their own before each message, as Tulu's models have it
tulu_thinker   the same; the answer begins with <think>
tulu_r1        the same, behind what r1_zero asks for; earlier answers without their thoughts
zephyr         as tulu, every message closed by the end-of-sequence token
simple         the messages alone, one a line
simple_space   the messages alone, parted by spaces
simple_chat    "User: ", "Assistant: " before the messages, parted by empty lines; nothing begins the answer
r1_zero        asks for <think>...</think> <answer>...</answer>; the answer begins with "Assistant: <think>"
r1_zero_plain  the same; the answer begins with "Assistant:"
r1_zero_boxed  as r1_zero, with a result in \\boxed{} asked for in every message
answer_line    the messages alone; asks for a last line "Answer: ..."
code_block     the messages alone; asks for a program in ```python
"""

from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.paths import local_path

FIELD = "model.chat_template"
_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))
"""Templates that come with Shoal."""


def template_text(given: str, field: str = FIELD) -> str:
    """The Jinja text that `model.chat_template`, or another field of its kind, stands for.

    Raises `InvalidArgument` for what is neither Jinja text, nor a name, nor a readable file of it on this machine.
    """
    if is_file_name(given):
        text = _read(local_path(given, field), given, field)
        if not _is_text(text):
            raise InvalidArgument(f"{field}: {given} is no chat template: it has neither {{{{ nor {{% in it")
        return text
    return _read(_FOLDER / f"{given}.jinja", given, field) if given in NAMES else given


def is_file_name(given: str) -> bool:
    """Whether it can only be the path of a file: it holds no Jinja and is no name."""
    return not _is_text(given) and given not in NAMES


def _is_text(given: str) -> bool:
    return "{{" in given or "{%" in given


def _read(path: Path, given: str, field: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        why = "there is no such file on this machine"
    except (OSError, UnicodeDecodeError) as error:
        why = f"the file cannot be read: {error}"
    raise InvalidArgument(
        f"{field}: {given!r:.100} is neither Jinja text, which has {{{{ or {{% in it, nor the name of a template "
        f"({', '.join(NAMES)}), and as a path: {why}"
    )
