"""Files with a JSON line for each train step or evaluation: `metrics.jsonl` and `evaluations.jsonl` of a run."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from services.coordinator.store.files.atomic_write import write_atomically
from services.coordinator.store.files.line_file import LineFile
from shoal.parsing import parse_json


class StepFile:
    """A file with one JSON object per line, each with its step, in the order of the final lineage's steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = LineFile(path)

    def read(self) -> list[dict[str, Any]]:
        """Returns all objects; none if there is no file."""
        return [row for _, row in self._rows()] if self._path.exists() else []

    def keep_until(self, step: int) -> list[dict[str, Any]]:
        """Removes the lines of steps after `step`, which a restore discards. Returns the objects that stay.

        Raises as `write_atomically` if there are lines to remove.
        """
        if not self._path.exists():
            return []
        self._file = LineFile(self._path)  # Without lines that wait: those are of later steps.
        self._file.cut()
        rows = list(self._rows())
        kept = [(line, row) for line, row in rows if row["step"] <= step]
        if len(kept) < len(rows):
            write_atomically(self._path, "".join(line for line, _ in kept))
        return [row for _, row in kept]

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            # A process that was killed may have left a partial last line.
            if (row := _row_of(line)) is not None:
                yield line, row

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the values of one step, or of the evaluation of its policy."""
        self._file.add(json.dumps({"step": step, **values}))


def _row_of(line: str) -> dict[str, Any] | None:
    """Returns the object of a line; None for a line that is damaged."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None
