"""What a coordinator makes of the runs that another one left."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest

from services.coordinator.run import runs
from services.coordinator.store.run_folders import list_runs
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.error_reasons import ErrorReason
from shoal.errors import AlreadyExists, DataLoss, FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from tests.support.configs import run_config
from tests.support.wordings import has_all

CONFIG = run_config()


async def test_a_run_that_is_taken_up_has_the_number_of_steps_that_it_was_changed_to(tmp_path: Path) -> None:
    record = _left(tmp_path, "lasting", num_steps=5)
    record.save_config(run_config(run={"num_steps": 7}))  # The change waited for the next step.
    with patch.object(runs, "ActiveRun", Mock(return_value=Mock(drive=AsyncMock()))):
        runs.Runs(tmp_path, Mock(), name="this").take_up()
    assert RunRecord.load_as_left(record.folder).num_steps == 7


def _left(data_dir: Path, name: str, **values: Any) -> RunRecord:
    """A run that the coordinator "this" drove when it ended."""
    record = RunRecord(name, data_dir / name, state=RunState.RUNNING, coordinator="this", **values)
    record.folder.mkdir()
    record.save()
    record.save_config(CONFIG)
    return record


async def test_a_damaged_run_keeps_no_other_from_going_on_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    _left(tmp_path, "truncated")
    (tmp_path / "truncated" / "run.json").write_text('{"run_id": "trunc')
    without = _left(tmp_path, "without", create_time_s=2.0)
    (without.folder / "config.json").unlink()
    _left(tmp_path, "whole", create_time_s=1.0)
    with patch.object(
        runs, "ActiveRun", Mock(side_effect=lambda record, *_, **__: Mock(record=record, drive=AsyncMock()))
    ):
        taken = runs.Runs(tmp_path, Mock(), name="this")
        taken.take_up()
    assert taken.active("").record.run_id == "whole"
    listed = {run.run_id: run for run in list_runs(taken.folders, pb.ListRunsRequest()).runs}
    assert f"{tmp_path}/truncated/run.json " in listed["truncated"].message, listed
    assert listed["without"].state == pb.RUN_STATE_FAILED, listed["without"]
    assert has_all(listed["without"].message, f"{without.folder}/config.json ", "No such file"), listed["without"]
    with pytest.raises(DataLoss, match=r"truncated/run\.json"):
        taken.find("truncated")
    with pytest.raises(FailedPrecondition, match=r"truncated .*run\.json") as refused:
        taken.active("truncated")
    assert refused.value.reason == ErrorReason.RUN_DAMAGED
    with pytest.raises(AlreadyExists, match="run truncated exists"):
        await taken.start(CONFIG, "truncated", queue=True)
