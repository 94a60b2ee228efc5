"""TensorBoard event files, written without TensorFlow or torch."""

import time
from collections.abc import Mapping
from pathlib import Path


class TensorBoardTracker:
    """Writes scalars by metric name. Each attempt adds a file to the folder, which TensorBoard reads as one run."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        # A step shows up as soon as it is done.
        self._writer.flush()

    def restored(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        # TensorBoard discards what it has from this step on when it reads a session start there.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()
