"""The texts of prompts: a chat template applied to conversations, by a program with limits.

A template is a program that comes with a model. It may not end, or want all memory, within one operation that nothing
in the same process can interrupt.
"""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from shoal.data.conversation import Conversation
from shoal.errors import InvalidArgument
from shoal.models import template_program
from shoal.quantities import format_bytes

_PROGRAM = Path(template_program.__file__)
_FIXED_S, _ROW_S = 30.0, 0.1
"""Longest time: so much, and so much for each row. A row takes about 0.05 ms."""
_MEMORY_BYTES = 1 << 30
"""Most memory of the program."""
_MAX_CHARS, _MAX_GROWTH = 1 << 20, 16
"""Most characters of a text: so many, and so many for each one of its messages."""


def render(conversations: Sequence[Conversation], tokenizer: Any, variables: Mapping[str, Any]) -> list[str]:
    """Returns the text of each conversation, in order; `variables` are those of the chat template.

    It ends with the beginning of the policy's turn, but for an environment: what that says first comes before.

    Raises `InvalidArgument`, with the row, where there is no template, or where it fails, does not end in time, or
    takes too much memory.
    """
    if not tokenizer.chat_template:
        raise InvalidArgument(
            "model.chat_template: the tokenizer has no chat template; set one, for example "
            "'{% for message in messages %}{{ message.content }}\\n{% endfor %}'"
        )
    within_s = _FIXED_S + _ROW_S * len(conversations)
    # Where there are several by name, it is the one that is not for tools.
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else tokenizer.get_chat_template()
    values = {"template": template, "variables": tokenizer.special_tokens_map | dict(variables)}
    with TemporaryFile("w+") as rows, TemporaryFile("w+") as texts:
        rows.write(json.dumps(values, default=str) + "\n")
        for conversation in conversations:
            messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
            rows.write(json.dumps([messages, conversation.environment is None]) + "\n")
        rows.seek(0)
        end = _run(rows, texts, within_s)
        texts.seek(0)
        return [_text(conversation, texts.readline(), end) for conversation in conversations]


def _run(rows: IO[str], texts: IO[str], within_s: float) -> str:
    """Runs the program to its end; returns what is wrong with a row that has no line in `texts`."""
    spec = find_spec("jinja2")
    assert spec is not None and spec.origin is not None, "transformers needs it for any template"
    folder = Path(spec.origin).parent.parent
    limits = [str(_MEMORY_BYTES), str(math.ceil(within_s) + 1)]
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(folder), *limits]
    try:
        code = subprocess.run(
            command, stdin=rows, stdout=texts, stderr=subprocess.DEVNULL, timeout=within_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"does not end: the {within_s:.0f} s for all rows are over"
    return f"ends its process, with exit code {code}"


def _text(conversation: Conversation, line: str, end: str) -> str:
    num_chars = sum(len(message.content) for message in conversation.messages)
    outcome = json.loads(line) if line.endswith("\n") else {"problem": end}
    problem = outcome.get("problem")
    if problem == "takes too much memory":
        problem = f"takes more than {format_bytes(_MEMORY_BYTES)} of memory"
    elif problem is None and len(outcome["text"]) > _MAX_CHARS + _MAX_GROWTH * num_chars:
        problem = f"makes {len(outcome['text'])} characters of {num_chars}"
    if problem is not None:
        raise InvalidArgument(
            f"{conversation.where}: the chat template (model.chat_template, else the tokenizer's own) {problem}"
        )
    text: str = outcome["text"]
    return text
