"""Messages between processes that do not trust each other: four bytes of length, little-endian, then JSON."""

import json
import os
import select
import time
from typing import Any

_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16

Message = dict[str, Any]


class Closed(Exception):
    """The process at the other end has ended."""


class Unreadable(Exception):
    """The received data is not a message: it is too long, or not a JSON object."""


class Channel:
    """Both directions of a conversation. The caller keeps the file descriptors, and closes them."""

    def __init__(self, read_fd: int, write_fd: int, *, max_bytes: int) -> None:
        """`max_bytes` is the size of the longest message that is read."""
        self._read_fd, self._write_fd, self._max_bytes = read_fd, write_fd, max_bytes
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def send(self, message: Message, *, deadline: float | None = None) -> None:
        """Sends one message. `deadline` is a time of time.monotonic(). Raises `Closed` or `TimeoutError`."""
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
        rest = memoryview(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
        while rest:
            _wait(self._write_fd, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Closed(str(error)) from None

    def receive(self, *, deadline: float | None = None) -> Message:
        """Receives the next message. Raises `Closed`, `Unreadable` or `TimeoutError`."""
        length = int.from_bytes(self._read(_LENGTH_BYTES, deadline), "little")
        if length > self._max_bytes:
            raise Unreadable(f"a message of {length} bytes; at most {self._max_bytes} are read")
        try:
            message = json.loads(self._read(length, deadline))
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"not JSON: {error}") from None
        if not isinstance(message, dict):
            raise Unreadable(f"not a JSON object: {type(message).__name__}")
        return message

    def _read(self, num_bytes: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            _wait(self._read_fd, select.POLLIN, deadline)
            try:
                piece = os.read(self._read_fd, min(num_bytes - len(data), _CHUNK_BYTES))
            except BlockingIOError:
                continue
            except OSError as error:
                raise Closed(str(error)) from None
            if not piece:
                raise Closed("the other side closed")
            data += piece
        return bytes(data)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    remaining = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(remaining):
        raise TimeoutError
