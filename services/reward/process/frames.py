"""Messages over a pipe: four bytes of length, little-endian, then JSON.

It is JSON because nothing from a model or a data set may be unpickled, and ASCII so that lone surrogates pass too.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

_LENGTH_BYTES = 4
_MAX_BYTES = 256 << 20
"""Largest message, which is larger than any answer."""

Message = dict[str, Any]


def encode_frame(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def read_frame(file: BinaryIO) -> Message | None:
    """Reads the next message. Returns None when the other side has closed."""
    head = file.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    body = file.read(int.from_bytes(head, "little"))
    message: Message = json.loads(body)
    return message


def take_pipes(*, shows_output: bool = False) -> tuple[BinaryIO, BinaryIO]:
    """Returns the pipes of jobs and answers, moved away from stdin and stdout, which a verifier may read or write. With
    `shows_output` stdout becomes stderr, line by line; otherwise output to it is lost. Processes that a verifier forks
    do not inherit the pipes, since a fork that returns from the verifier would answer the next completion's job."""
    jobs = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2 if shows_output else nothing, 1)
    if shows_output and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # Shows the last lines before a hang.

    def detach() -> None:
        for pipe in (jobs, answers):
            os.dup2(nothing, pipe.fileno(), inheritable=False)

    os.register_at_fork(after_in_child=detach)
    return jobs, answers


class FrameBuffer:
    """Assembles messages from data that arrives in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yields each complete message. Raises `ValueError` for data that is not a message."""
        self._data += data
        while len(self._data) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._data[:_LENGTH_BYTES], "little")
            if end > _MAX_BYTES:
                raise ValueError(f"a message of {end} bytes; at most {_MAX_BYTES} are read")
            if len(self._data) < end:
                return
            body = bytes(self._data[_LENGTH_BYTES:end])
            del self._data[:end]
            yield json.loads(body)
