"""The recording of train steps with torch's profiler, on one rank."""

import gzip
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from services.learner.learner import Learner
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import discard_folder, start_folder, storage_errors, sync
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, Internal, ShoalError
from shoal.paths import step_name
from shoal.rollout import WeightVersion

MAX_LAYER_ROWS = 2000
"""The most rows of a recording, times the layers of the model: about two million operations, or 3 GiB. A row counts
once for each model that reads it in a pass, also if there is no backward pass.

While torch processes them, for some seconds, no other thread of the process runs, and heartbeats stop."""
_COMPRESSION = 1
"""Level of gzip. Operations repeat, so the lowest level already makes a trace 14 times smaller."""


@dataclass(frozen=True)
class Profile:
    """The recorded train steps."""

    paths: tuple[Path, ...]
    """The trace file of each rank, by rank."""
    first_version: WeightVersion
    """The version before the first step."""
    version: WeightVersion
    """The version after the last step."""
    is_partial: bool
    """Whether the traces end early, within the last step or after it, since more rows would be too many."""


@dataclass
class _Recording:
    folder: Path
    num_left: int
    """Steps that are still to be recorded."""
    num_rows_left: int = 0
    is_partial: bool = False
    """Whether the profiler was stopped early, because of many rows."""
    is_in_step: bool = False
    first_version: WeightVersion | None = None
    """The version before the first recorded step; None before that step."""
    version: WeightVersion | None = None
    """The version after the last recorded step that has ended."""
    profiler: Any = field(default_factory=lambda: profile(activities=_activities()))
    future: "Future[Profile]" = field(default_factory=Future)


class StepProfiler:
    """Records train steps on demand. Call every method on all ranks, in the same order."""

    def __init__(self, process_group: ProcessGroup) -> None:
        self._process_group = process_group
        self._recording: _Recording | None = None

    def begin(self, folder: Path, num_steps: int) -> "Future[Profile]":
        """Records the next `num_steps` train steps, or fewer if they have many rows, and drops an earlier recording.

        The future has the result once each rank has written a trace below `folder`. Otherwise it has the error of a
        rank: `ResourceExhausted` for a full disk, `FailedPrecondition` for a folder that cannot be written.
        """
        self.drop()
        self._recording = _Recording(folder, num_steps)
        self._recording.future.set_running_or_notify_cancel()  # A caller that has gone cancels its own future alone.
        return self._recording.future

    def drop(self) -> None:
        """Ends a recording without a result."""
        recording, self._recording = self._recording, None
        if recording is not None:
            if recording.first_version is not None and not recording.is_partial:
                recording.profiler.stop()
            recording.future.set_exception(
                Aborted("the recording of train steps was dropped", reason=ErrorReason.PROFILE_DROPPED)
            )

    @contextmanager
    def step(self, learner: Learner) -> Iterator[None]:
        """Returns a context that contains a train step. After the last step of a recording, writes the trace.

        A trace that cannot be written does not fail the step.
        """
        recording = self._recording
        if recording is None:
            yield
            return
        if recording.first_version is None:
            recording.first_version = learner.version
            recording.num_rows_left = max(1, MAX_LAYER_ROWS // learner.lm.config.get_text_config().num_hidden_layers)
            recording.profiler.start()
        recording.is_in_step = True
        with record_function(f"train step {learner.version.policy_version + 1}"):
            yield
        recording.is_in_step = False
        recording.num_left -= 1
        recording.version = learner.version
        if not recording.num_left:
            self._finish(recording)

    def after_row(self) -> None:
        """Ends a recording that has too many rows, at the end of the step if one is under way.

        Call it after the passes of a model over a row. Every rank has the same number of rows.
        """
        recording = self._recording
        if recording is None or recording.first_version is None or recording.is_partial:
            return
        recording.num_rows_left -= 1
        if not recording.num_rows_left:
            recording.profiler.stop()
            recording.is_partial, recording.num_left = True, 1
            if not recording.is_in_step:
                self._finish(recording)

    def _finish(self, recording: _Recording) -> None:
        self._recording = None
        first_version, version = recording.first_version, recording.version
        assert first_version is not None and version is not None, "a step has ended"
        if not recording.is_partial:
            recording.profiler.stop()
        name, group = step_name(first_version.policy_version + 1), self._process_group
        paths = tuple(recording.folder / f"{name}-rank-{rank}.json.gz" for rank in range(group.size))
        try:
            with group.raising_on_all():
                write_trace(recording.profiler, paths[group.rank])
        except ShoalError as error:
            with suppress(OSError):
                paths[group.rank].unlink()
            recording.future.set_exception(error)
        else:
            recording.future.set_result(Profile(paths, first_version, version, recording.is_partial))


def write_trace(profiler: Any, path: Path) -> None:
    """Writes what a profiler has recorded, in Chrome's format with gzip. The file appears whole or not at all.

    Raises `ResourceExhausted` for a full disk, and `FailedPrecondition` for a folder that cannot be written.
    """
    try:
        with storage_errors(path.parent):
            partial = start_folder(path)
            trace, compressed = partial / "trace.json", partial / "trace.json.gz"
            profiler.export_chrome_trace(str(trace))
            with trace.open("rb") as source, gzip.open(compressed, "wb", compresslevel=_COMPRESSION) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            sync(compressed)
            compressed.replace(path)
            sync(path.parent)
    except RuntimeError as error:
        raise Internal(f"torch could not write the trace {path}: {error}") from error
    finally:
        discard_folder(path)


def _activities() -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
