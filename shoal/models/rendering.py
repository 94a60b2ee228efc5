"""The texts of conversations: a chat template applied to them, by a program with limits.

A template is a program that comes with a model. It may not end, or want all memory, within one operation that nothing
in the same process can interrupt.
"""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from shoal.models import template_program
from shoal.quantities import format_bytes

_PROGRAM = Path(template_program.__file__)
_FIXED_S, _ROW_S = 30.0, 0.1
"""Longest time: so much, and so much for each conversation. One takes about 0.05 ms."""
_MEMORY_BYTES = 1 << 30
"""Most memory of the program."""
_MAX_CHARS, _MAX_GROWTH = 1 << 20, 16
"""Most characters of a text: so many, and so many for each one of its messages."""


@dataclass(frozen=True)
class Unrendered:
    """A conversation without a text."""

    why: str
    """What the template does instead: "refuses the messages: ..."."""


@dataclass(frozen=True)
class Dialogue:
    """The input of a chat template."""

    messages: Sequence[Mapping[str, str]]
    """Each with `role` and `content`."""
    begins_turn: bool
    """Whether the beginning of the policy's turn follows the messages."""


def render_texts(tokenizer: Any, dialogues: Sequence[Dialogue], variables: Mapping[str, Any]) -> list[str | Unrendered]:
    """Applies the tokenizer's chat template to each dialogue, in order; `variables` are those of the template.

    Returns fewer than `dialogues` where the last one that it returns has ended the program: one for which the template
    does not end in time, or takes too much memory.
    """
    within_s = _FIXED_S + _ROW_S * len(dialogues)
    # Where there are several by name, it is the one that is not for tools.
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else tokenizer.get_chat_template()
    values = {"template": template, "variables": tokenizer.special_tokens_map | dict(variables)}
    with TemporaryFile("w+") as rows, TemporaryFile("w+") as texts:
        rows.write(json.dumps(values, default=str) + "\n")
        for dialogue in dialogues:
            rows.write(json.dumps([list(map(dict, dialogue.messages)), dialogue.begins_turn]) + "\n")
        rows.seek(0)
        end = _run(rows, texts, within_s)
        texts.seek(0)
        outcomes: list[str | Unrendered] = []
        for dialogue in dialogues:
            line = texts.readline()
            if not line.endswith("\n"):
                return [*outcomes, Unrendered(end)]
            outcome = json.loads(line)
            outcomes.append(_text(dialogue, outcome))
            if outcome.get("is_last"):
                break
        return outcomes


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


def _text(dialogue: Dialogue, outcome: Mapping[str, Any]) -> str | Unrendered:
    problem = outcome.get("problem")
    if problem == "takes too much memory":
        return Unrendered(f"takes more than {format_bytes(_MEMORY_BYTES)} of memory")
    if problem is not None:
        return Unrendered(problem)
    text: str = outcome["text"]
    num_chars = sum(len(message["content"]) for message in dialogue.messages)
    if len(text) > _MAX_CHARS + _MAX_GROWTH * num_chars:
        return Unrendered(f"makes {len(text)} characters of {num_chars}")
    return text
