import json
from collections import Counter
from pathlib import Path

import pytest

from services.coordinator.reporting.report import Report
from services.coordinator.store.events import EventLog, read_events
from services.coordinator.store.run_record import RunRecord
from shoal.config.live import LiveConfig
from shoal.telemetry import metrics as telemetry
from shoal.telemetry import names
from tests.support.configs import run_config

CONFIG = LiveConfig(run_config())


async def test_a_metric_that_is_not_finite_is_left_out_of_file_and_event(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    times = {"time/step": 1.0, "time/waiting_for_groups": 0.0, "time/publishing": 0.0}
    metrics = {**times, "val/ratio": float("inf"), "val/ratio_var": float("nan"), "objective/scores": 0.5}
    reported = Report(RunRecord("run", tmp_path), events, CONFIG).step(1, metrics)
    events.close()
    finite = {**times, "objective/scores": 0.5, "time/effective_share": 0.0}
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, **finite}
    [event] = read_events(tmp_path / "events.jsonl")
    assert event.attributes["metrics"] == finite == reported


async def test_groups_of_skipped_steps_count_as_dropped_for_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counter[str]()
    monkeypatch.setattr(
        telemetry.counter(names.RUN_GROUPS), "add", lambda number, labels: counted.update({labels[names.STATE]: number})
    )
    report = Report(RunRecord("run", tmp_path), EventLog(tmp_path / "events.jsonl"), CONFIG)
    report.skipped_step(0, "no signal", 1, num_groups=4)
    times = {"time/step": 1.0, "time/waiting_for_groups": 0.0, "time/publishing": 0.0}
    report.step(1, {**times, "val/total_reward_groups": 3.0, "val/num_groups_dropped": 1.0})
    assert counted == {"DROPPED": 5, "TRAINED": 3}, counted
