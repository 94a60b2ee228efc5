"""A file to which lines are only appended. A full disk leaves no incomplete line, and loses none."""

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


class LineFile:
    """Appends lines to a file. A line that cannot be written is written together with the next line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def cut(self) -> None:
        """Removes an incomplete last line, which a killed process may leave. Raises `OSError`."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() == b"\n":
                return
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    @property
    def is_behind(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._waiting)

    def add(self, line: str) -> None:
        """Appends a line. If that fails, keeps it for the next call, so that no run ends because of its reports."""
        was_behind = self.is_behind
        self._waiting.append(line + "\n")
        try:
            self._write("".join(self._waiting).encode())
        except OSError as error:
            if not was_behind:
                _log.error("%s cannot be written: %s; new lines stay in memory for a later write", self.path, error)
        else:
            self._waiting.clear()

    def _write(self, lines: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            end, rest = file.tell(), memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise
