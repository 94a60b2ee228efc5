"""The runs of a data folder, read without a coordinator and without disturbing one."""

import os
import re
from collections.abc import Callable, Sequence
from itertools import starmap
from pathlib import Path
from typing import TypeVar

from services.coordinator.store.rollout_page import MAX_PAGE_BYTES
from services.coordinator.store.rollouts import count_groups
from services.coordinator.store.run_lock import TRAIN_LOCK, RunLock, is_driven
from services.coordinator.store.run_record import RunRecord, RunState, holds_run, new_run_id
from shoal.config.run import RunConfig
from shoal.config.tables.run import MAX_RUN_NAME_CHARS, RUN_NAME
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from shoal.paths import is_path
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire.paging import bad_token, page_size

ResultT = TypeVar("ResultT")


class RunFolders:
    """Finds the runs of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()

    def all(self) -> list[RunRecord]:
        """Returns all runs, newest first, without those whose record cannot be read."""
        return _newest_first(self._read(RunRecord.load)[0])

    def listed(self) -> list[RunRecord]:
        """Returns the runs of `all`. Shows each record that cannot be read as a FAILED run whose message says why."""
        records, damaged = self._read(RunRecord.load)
        return _newest_first([*records, *starmap(_stand_in, damaged)])

    def left(self) -> tuple[list[RunRecord], list[tuple[Path, DataLoss]]]:
        """Returns unfinished runs without a coordinator, newest first; also the folders of damaged runs with errors."""
        records, damaged = self._read(_load_left)
        return _newest_first([record for record in records if record is not None]), damaged

    def _read(self, load: Callable[[Path], ResultT]) -> tuple[list[ResultT], list[tuple[Path, DataLoss]]]:
        """Loads every run; returns what could be loaded, and the other folders with the errors."""
        loaded, damaged = list[ResultT](), list[tuple[Path, DataLoss]]()
        for folder in self.data_dir.glob("*"):
            try:
                # What is fetched has a name with a dot until it is whole.
                if not folder.name.startswith(".") and holds_run(folder):
                    loaded.append(load(folder))
            except DataLoss as error:
                damaged.append((folder, error))
        return loaded, damaged

    def make_way(self, run_id: str) -> str:
        """Renames a run that FAILED before its first step, so that a new run can have the name.

        Returns the run's new name; an empty name if the run is not renamed, because it took a step or may continue.
        """
        try:
            record = RunRecord.load_as_left(self.data_dir / run_id)
            lock = RunLock(record.folder, TRAIN_LOCK)
        except (DataLoss, FailedPrecondition):
            return ""
        try:
            has_trained = record.furthest_step > 0 or record.last_checkpoint_id != ""
            if record.state is not RunState.FAILED or has_trained or is_driven(record.folder):
                return ""
            record.renamed(new_run_id(f"{run_id}-failed"))
        finally:
            lock.release()
        return record.run_id

    def find(self, run_id: str) -> RunRecord:
        """Returns the run with a name. For an empty name, returns an active run, or the newest run if none is active.

        Raises `NotFound`, and `DataLoss` if the record of that name cannot be read.
        """
        if run_id:
            if RUN_NAME.fullmatch(run_id) and holds_run(self.data_dir / run_id):
                return RunRecord.load(self.data_dir / run_id)
            raise NotFound(
                f"there is no run {run_id!r} in {self.data_dir}: give a name that `shoal run list` shows",
                reason=ErrorReason.NO_RUN,
            )
        runs, damaged = self._read(RunRecord.load)
        if not runs and damaged:
            raise damaged[0][1]
        if not runs:
            raise NotFound(f"there is no run in {self.data_dir}: start a run first", reason=ErrorReason.NO_RUN)
        runs = _newest_first(runs)
        active = [record for record in runs if not record.state.has_ended]
        return next((record for record in active if record.state is not RunState.QUEUED), (active or runs)[0])


def locate_run(run: str, data_dir: Path) -> tuple[Path, str]:
    """Returns the data folder and the name of a run, which is given by its name or by the path of its folder.

    If no run in `data_dir` has the name, a run's folder of that name in the current folder is used. If there is none,
    or the name is empty, returns `data_dir` and the name. Raises `NotFound` for a path that is not the folder of a run,
    and `InvalidArgument` for a folder whose name no run can have.
    """
    data_dir, here = data_dir.absolute(), Path(os.path.abspath(run))
    folder = here if is_path(run) or not holds_run(data_dir / run) else data_dir / run
    if not run or not (is_path(run) or holds_run(folder)):
        return data_dir, run
    if not holds_run(folder):
        raise NotFound(
            f"{folder} is not the folder of a run: give a run's name, or the path of its folder",
            reason=ErrorReason.NO_RUN,
        )
    if not RUN_NAME.fullmatch(folder.name):
        raise InvalidArgument(
            f"the folder {folder} holds a run, but no run can be called {folder.name!r}: rename it to up to "
            f"{MAX_RUN_NAME_CHARS} characters of a-z, 0-9, '.', '_' and '-'"
        )
    return folder.parent, folder.name


def _load_left(folder: Path) -> RunRecord | None:
    record = RunRecord.load_as_left(folder)
    return None if record.state.has_ended or is_driven(folder) else record


def _stand_in(folder: Path, error: DataLoss) -> RunRecord:
    """Returns what a list shows of a run whose record cannot be read."""
    try:
        changed_s = folder.stat().st_mtime
    except OSError:
        changed_s = 0.0
    return RunRecord(folder.name, folder, RunState.FAILED, error.message, create_time_s=changed_s)


def _newest_first(records: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(records, key=lambda record: (record.create_time_s, record.run_id), reverse=True)


def describe(record: RunRecord, config: RunConfig | None = None) -> pb.Run:
    """Returns a run as a message with its configuration and the counts of its groups.

    `config` defaults to the configuration in the run's folder; raises `DataLoss` if that is lost. Leaves out the counts
    if the ledger is damaged, since a resume restores it, or if another version of Shoal wrote it.
    """
    try:
        num_groups = count_groups(record.folder)
    except (DataLoss, FailedPrecondition) as error:
        if error.reason not in (ErrorReason.LEDGER_DAMAGED, ErrorReason.LEDGER_VERSION):
            raise
        num_groups = {}
    return record.to_wire(num_groups, config or record.load_config())


def list_runs(folders: RunFolders, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
    """Answers `ListRuns` from a data folder. Raises `InvalidArgument`."""
    size = page_size(request.page_size, default=50, largest=500)
    if not re.fullmatch("[0-9]{0,18}", request.page_token):
        raise bad_token(request.page_token)
    start = int(request.page_token or 0)
    response, num_bytes = pb.ListRunsResponse(), 0
    for index, record in enumerate(folders.listed()[start:]):
        run = record.to_wire({}, None)
        num_bytes += run.ByteSize()
        if index == size or (index and num_bytes > MAX_PAGE_BYTES):
            response.next_page_token = str(start + index)
            break
        response.runs.append(run)
    return response
