"""TensorBoard event files, written without TensorFlow or torch."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class TensorBoardTracker:
    """Writes scalars by metric name. Each attempt adds a file to the folder, which TensorBoard reads as one run."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()])

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        # Each row is a Markdown text whose values are code blocks, so that a model's text is not rendered.
        texts = ["\n\n".join(f"**{column}**\n\n{_as_code(value)}" for column, value in row.items()) for row in rows]
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode() for text in texts])
        tensor.tensor_shape.dim.add(size=len(texts))
        self._add(step, [Summary.Value(tag=name, tensor=tensor, metadata=create_summary_metadata("", ""))])

    def _add(self, step: int, values: Sequence[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        # A step shows up as soon as it is done.
        self._writer.flush()

    def restored(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        # TensorBoard discards its data from this step on when it reads a session start there.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _as_code(value: object) -> str:
    """Indents a value, which makes the value a code block in Markdown."""
    return "\n".join(f"    {line}" for line in str(value).splitlines())
