"""Where the metrics of each step go: `metrics.jsonl` in the run's folder."""

import json
from collections.abc import Mapping
from pathlib import Path

from services.coordinator.checkpoints import write_atomically


class MetricsFile:
    """One JSON object a train step, in the order of the steps of the final lineage."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep_until(self, step: int) -> None:
        """Takes out the steps after one: a restore gives them up."""
        if self._path.exists():
            lines = [line for line in self._path.read_text().splitlines(keepends=True) if _step(line) <= step]
            write_atomically(self._path, "".join(lines))

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of one step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")  # The last line of a process that was killed.
