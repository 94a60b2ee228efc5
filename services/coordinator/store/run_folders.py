"""The runs of a data folder, as anybody can read them: no coordinator is needed, and none is disturbed."""

import contextlib
import re
from pathlib import Path

from services.coordinator.store.rollout_page import MAX_PAGE_BYTES
from services.coordinator.store.rollouts import count_groups
from services.coordinator.store.run_record import RunRecord, RunState, is_driven
from shoal.config.run import RUN_NAME, RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire.paging import bad_token, page_size


class RunFolders:
    """Finds the runs of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()

    def all(self) -> list[RunRecord]:
        """Returns all runs, newest first, without those whose record cannot be read."""
        records = []
        for path in self.data_dir.glob("*/run.json"):
            with contextlib.suppress(OSError, DataLoss):
                records.append(RunRecord.load(path.parent))
        return sorted(records, key=lambda record: (record.create_time_s, record.run_id), reverse=True)

    def left(self) -> list[RunRecord]:
        """Returns the runs that have not ended and that no coordinator drives, newest first."""
        records = []
        for path in self.data_dir.glob("*/run.json"):
            with contextlib.suppress(OSError, DataLoss):
                record = RunRecord.load_as_left(path.parent)
                if not record.state.has_ended and not is_driven(path.parent):
                    records.append(record)
        return sorted(records, key=lambda record: record.create_time_s, reverse=True)

    def find(self, run_id: str) -> RunRecord:
        """Returns a run by name; an empty name means one that is active, or else the newest.

        Raises `NotFound`.
        """
        if run_id:
            if RUN_NAME.fullmatch(run_id):
                with contextlib.suppress(OSError, DataLoss):
                    return RunRecord.load(self.data_dir / run_id)
            raise NotFound(f"there is no run {run_id!r} in {self.data_dir}", reason=ErrorReason.NO_RUN)
        runs = self.all()
        if not runs:
            raise NotFound(f"there is no run in {self.data_dir}", reason=ErrorReason.NO_RUN)
        active = [record for record in runs if not record.state.has_ended]
        return next((record for record in active if record.state is not RunState.QUEUED), (active or runs)[0])


def describe(record: RunRecord, config: RunConfig | None = None) -> pb.Run:
    """Returns a run as a message, with its configuration, by default that of its folder, and the number of its groups.

    Leaves the number out for a ledger that is damaged, which a resume restores, and for one of another version of
    Shoal. Raises `DataLoss` for a lost configuration.
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
    for index, record in enumerate(folders.all()[start:]):
        run = record.to_wire({}, None)
        num_bytes += run.ByteSize()
        if index == size or (index and num_bytes > MAX_PAGE_BYTES):
            response.next_page_token = str(start + index)
            break
        response.runs.append(run)
    return response
