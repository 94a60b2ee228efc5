"""The texts of conversations. A program with limits applies the chat template.

A template is a program that comes with a model. A single operation of a template may never end, or may take all memory,
and nothing in the same process could interrupt the operation.
"""

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.chat_templates import template_program
from shoal.errors import InvalidArgument
from shoal.quantities import format_bytes

_PROGRAM = Path(template_program.__file__)
_FIXED_S, _ROW_S = 30.0, 0.1
"""The longest time of a call, and the additional time for each conversation, which usually takes about 0.05 ms."""
_MEMORY_BYTES = 1 << 30
_MAX_CHARS, _MAX_GROWTH = 1 << 20, 16
"""The most characters of a text: a fixed number, and a number for each character of the text's messages and tools."""
_ROWS_AT_ONCE = 64
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Unrendered:
    """A conversation without a text."""

    why: str
    """The reason for which there is no text, as a verb phrase about the template: "refuses the messages: ..."."""
    refusal: str = ""
    """The template's own message if the template refuses the messages, otherwise empty."""


@dataclass(frozen=True)
class Dialogue:
    """The input of a chat template."""

    messages: Sequence[Mapping[str, Any]]
    """The messages, each with `role` and `content`."""
    begins_turn: bool
    """Whether the beginning of the policy's turn follows the messages."""
    tools: Sequence[Mapping[str, Any]] | None = None


class BoundedTemplate:
    """A tokenizer's chat template, applied in a separate process. Make one call at a time.

    The process begins with the first call and ends with this object. A new process replaces a process that was ended.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, Any], time_s: float | None = None) -> None:
        """The template sees `variables`, the tokenizer's special tokens, and the time `time_s` (in seconds since 1970,
        by default the current time). All texts of this object have the same time."""
        self._given = json.dumps(
            {
                # If a tokenizer has several named templates, one may be for tools.
                "plain": _template(tokenizer, has_tools=False),
                "for_tools": _template(tokenizer, has_tools=True),
                "variables": tokenizer.special_tokens_map | dict(variables),
                "time_s": time.time() if time_s is None else time_s,
                "max_chars": _MAX_CHARS,
                "max_growth": _MAX_GROWTH,
            },
            default=str,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def render(self, dialogues: Sequence[Dialogue]) -> list[str | Unrendered]:
        """Returns the text of each dialogue, in order, up to a dialogue that ends the process: the template does not
        end in time, or takes too much memory."""
        within_s = _FIXED_S + _ROW_S * len(dialogues)
        deadline = time.monotonic() + within_s
        outcomes: list[str | Unrendered] = []
        for start in range(0, len(dialogues), _ROWS_AT_ONCE):
            some = dialogues[start : start + _ROWS_AT_ONCE]
            self._send(some, cpu_s=math.ceil(within_s) + 1)
            for _ in some:
                outcomes.append(self._outcome(deadline, within_s))
                if self._process is None:
                    return outcomes
        return outcomes

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._ending()
        self._process, self._read = None, b""

    def _send(self, dialogues: Sequence[Dialogue], cpu_s: int) -> None:
        rows = [[list(map(dict, one.messages)), one.begins_turn, one.tools] for one in dialogues]
        lines = [json.dumps({"cpu_s": cpu_s, "rows": rows})]
        if self._process is None:
            self._process = _start()
            self._ending = weakref.finalize(self, _end, self._process)
            lines.insert(0, self._given)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The process has ended, which the next read shows.
            # The process reads all input before it writes, so neither side waits for the other.
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self._process.stdin.flush()

    def _outcome(self, deadline: float, within_s: float) -> str | Unrendered:
        """Returns the program's result for the next row. Ends the program if the program cannot continue."""
        assert self._process is not None
        try:
            line = self._line(deadline)
        except TimeoutError:
            self.close()
            return Unrendered(f"does not end within {within_s:g} s")
        if line is None:
            code = self._process.wait()
            self.close()
            return Unrendered(f"ends its process, with exit code {code}")
        outcome = json.loads(line)
        if outcome.get("problem") == "memory":
            self.close()
            return Unrendered(f"takes more than {format_bytes(_MEMORY_BYTES)} of memory")
        if (refusal := outcome.get("refusal")) is not None:
            return Unrendered(f"refuses the messages: {refusal}", refusal)
        return Unrendered(outcome["problem"]) if "problem" in outcome else str(outcome["text"])

    def _line(self, deadline: float) -> bytes | None:
        """Returns the next line of the program; None if the program has ended. Raises `TimeoutError`."""
        assert self._process is not None and self._process.stdout is not None
        parts, output = [self._read], self._process.stdout.fileno()
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while b"\n" not in parts[-1]:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise TimeoutError
            if not (part := os.read(output, _READ_BYTES)):
                return None
            parts.append(part)
        line, _, self._read = b"".join(parts).partition(b"\n")
        return line


def render_texts(
    tokenizer: Any, dialogues: Sequence[Dialogue], variables: Mapping[str, Any], time_s: float | None = None
) -> list[str | Unrendered]:
    """Applies the tokenizer's chat template to each dialogue, as `BoundedTemplate.render` does."""
    with contextlib.closing(BoundedTemplate(tokenizer, variables, time_s)) as template:
        return template.render(dialogues)


def _template(tokenizer: Any, *, has_tools: bool) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict) and "default" not in template and not (has_tools and "tool_use" in template):
        raise InvalidArgument(
            f"model.chat_template: the tokenizer has several chat templates, {', '.join(template)}, and none is its "
            "default; set model.chat_template to the text of one of them"
        )
    return str(template if isinstance(template, str) else tokenizer.get_chat_template(tools=[] if has_tools else None))


def _start() -> "subprocess.Popen[bytes]":
    spec = find_spec("jinja2")
    assert spec is not None and spec.origin is not None, "transformers needs it for any template"
    folder = Path(spec.origin).parent.parent
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(folder), str(_MEMORY_BYTES)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    process.wait()
