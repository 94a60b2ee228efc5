import json
from pathlib import Path

from services.coordinator.reporting.report import Report
from services.coordinator.store.events import EventLog, read_events
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config
from shoal.errors import FailedPrecondition

CONFIG = parse_config({"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}})


async def test_a_metric_that_is_not_finite_is_left_out_of_file_event_and_record(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    record = RunRecord("run", tmp_path)
    times = {"time/step": 1.0, "time/waiting_for_groups": 0.0, "time/publishing": 0.0}
    metrics = {**times, "val/ratio": float("inf"), "val/ratio_var": float("nan"), "objective/scores": 0.5}
    Report(record, events, CONFIG).step(1, metrics)
    events.close()
    finite = {**times, "objective/scores": 0.5, "time/effective_share": 0.0}
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, **finite}
    [event] = read_events(tmp_path / "events.jsonl")
    assert event.attributes["metrics"] == finite == record.metrics


async def test_the_message_of_a_failed_run_names_the_checkpoint_to_resume_from(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    record = RunRecord("run", tmp_path, last_checkpoint_id="step-00000004")
    Report(record, events, CONFIG).failure(FailedPrecondition("the learner is gone"))
    events.close()
    assert record.state is RunState.FAILED
    assert record.message == "the learner is gone; resume from step-00000004 with: shoal train --resume run"
