"""What a coordinator makes of the runs that another one left."""

from pathlib import Path
from unittest.mock import AsyncMock, Mock, patch

from services.coordinator.run import runs
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config


async def test_a_run_that_is_taken_up_has_the_number_of_steps_that_it_was_changed_to(tmp_path: Path) -> None:
    sources = {"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}}
    record = RunRecord("lasting", tmp_path / "lasting", state=RunState.RUNNING, num_steps=5, coordinator="this")
    record.folder.mkdir()
    record.save()
    record.save_config(parse_config(sources | {"run": {"num_steps": 7}}))  # The change waited for the next step.
    with patch.object(runs, "ActiveRun", Mock(return_value=Mock(drive=AsyncMock()))):
        runs.Runs(tmp_path, Mock(), name="this").take_up()
    assert RunRecord.load_as_left(record.folder).num_steps == 7
