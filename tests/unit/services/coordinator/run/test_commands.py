"""What a paused run says."""

from pathlib import Path
from unittest.mock import create_autospec

from services.coordinator.reporting.report import Report
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.controls import RunControls
from services.coordinator.store.events import EventLog
from services.coordinator.store.run_record import RunRecord, RunState
from services.coordinator.workers.reward_pool import RewardPool
from services.coordinator.workers.weights.publisher import Publisher
from shoal.config.live import LiveConfig
from tests.support.configs import run_config

CONFIG = LiveConfig(run_config())
OUTAGE = "the verifier judge failed: the run is paused"
WAITS = f"{OUTAGE}; waiting for workers and their models"


async def test_the_reason_of_a_pause_outlives_attempts_and_coordinators(tmp_path: Path) -> None:
    record = RunRecord("run", tmp_path)
    events = EventLog(tmp_path / "events.jsonl")
    for ends_while_it_waits in (True, False):
        controls = RunControls()
        commands = RunCommands(controls, record, Report(record, events, CONFIG))
        if record.state is RunState.PAUSED:
            controls.pause()
        else:
            await commands.pause(OUTAGE)
        commands.attempt_begins(create_autospec(Publisher, instance=True), create_autospec(RewardPool, instance=True))
        assert (record.state, record.message) == (RunState.PAUSED, WAITS)
        if not ends_while_it_waits:
            commands.training_begins(3)
            assert (record.state, record.message) == (RunState.PAUSED, OUTAGE)
