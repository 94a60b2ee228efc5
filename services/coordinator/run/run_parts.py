"""The parts that all attempts of a run share."""

from dataclasses import dataclass

from services.coordinator.reporting.report import Report
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.controls import RunControls
from services.coordinator.store.events import EventLog
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.fleet import Fleet
from shoal.config.live import LiveConfig


@dataclass(frozen=True)
class RunParts:
    """The record, controls, workers and reports of a run. These parts outlive the attempts of the run."""

    record: RunRecord
    config: LiveConfig
    controls: RunControls
    commands: RunCommands
    fleet: Fleet
    report: Report
    events: EventLog
