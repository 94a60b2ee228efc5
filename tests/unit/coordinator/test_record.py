"""What is written of a run, and what is made of what cannot be read."""

import json
from pathlib import Path

import pytest
from google.protobuf import json_format

from services.coordinator.events import EventLog
from services.coordinator.record import RunRecord, new_run_id
from services.coordinator.report import Report
from services.coordinator.runs import Runs
from services.coordinator.service import _event_to_wire
from services.coordinator.workers import WorkerRegistry
from shoal.config import parse_config
from shoal.config.run import RUN_NAME
from shoal.errors import DataLoss, NotFound


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"run_id": "x", "state": "FINISHED", "of_a_later_version": 1}']
)
def test_a_record_that_cannot_be_read_hides_no_other_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text(text)
    (tmp_path / "good").mkdir()
    RunRecord("good", tmp_path / "good").save()
    runs = Runs(tmp_path, WorkerRegistry())
    runs.close_abandoned()
    assert [record.run_id for record in runs.all()] == ["good"]
    with pytest.raises(NotFound, match="'broken'"):
        runs.find("broken")


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_lost_configuration_is_told_with_its_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DataLoss, match=r"run sums has lost its configuration: .*config\.json cannot be read"):
        RunRecord("sums", tmp_path).load_config()


def test_a_line_that_is_no_event_hides_no_other(tmp_path: Path) -> None:
    event = {"time_s": 1.0, "kind": "state", "message": "", "attributes": {}}
    (tmp_path / "events.jsonl").write_text(f'[1]\n{{}}\n{json.dumps(event)}\n{{"time_s": 2')
    assert [event.kind for event in EventLog(tmp_path / "events.jsonl")._events] == ["state"]


@pytest.mark.parametrize("name", ["a", "a" * 47, "a" * 63])
def test_every_run_name_makes_a_run_id(name: str) -> None:
    assert RUN_NAME.fullmatch(new_run_id(name)), new_run_id(name)


async def test_a_figure_that_is_not_finite_is_left_out_of_what_is_sent_and_written(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    config = parse_config({"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}})
    report = Report(RunRecord("run", tmp_path), events, config)
    times = {"time/step": 1.0, "time/waiting_for_groups": 0.0, "time/publishing": 0.0}
    report.step(1, {**times, "val/ratio": float("inf"), "val/ratio_var": float("nan"), "objective/scores": 0.5})
    events.close()
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, **times, "objective/scores": 0.5}
    [event] = EventLog(tmp_path / "events.jsonl")._events
    assert "val/ratio" not in json_format.MessageToDict(_event_to_wire(event).attributes)["metrics"]
