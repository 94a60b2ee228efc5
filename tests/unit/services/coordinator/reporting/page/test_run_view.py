from pathlib import Path

from services.coordinator.reporting.page.run_view import NUM_GROUPS, view_run
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.files.step_file import StepFile
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.run_record import RunRecord, RunState
from tests.support.configs import run_config
from tests.support.sampled import PROMPT, completion


def new_record(folder: Path) -> RunRecord:
    record = RunRecord("run", folder, state=RunState.STOPPED)
    record.save()
    return record


async def test_the_last_groups_that_are_no_longer_being_sampled_come_newest_first(
    ledger: Ledger, tmp_path: Path
) -> None:
    for number in range(NUM_GROUPS + 8):
        await ledger.issued(number, number, f"g{number}", PROMPT, "", 0, "")
    being_sampled = {NUM_GROUPS + 7, NUM_GROUPS + 5}
    for number in sorted(set(range(NUM_GROUPS + 8)) - being_sampled):
        await ledger.sampled(number, [completion()], 0, "")
    await ledger.dropped(NUM_GROUPS + 6, "timeout", 0)
    view = view_run(new_record(tmp_path))  # While the ledger is open, as that of a live run is.
    await ledger.close()
    expected = [NUM_GROUPS + 6, *range(NUM_GROUPS + 4, 5, -1)]
    assert [group.order_number for group in view.groups] == expected
    assert len(expected) == NUM_GROUPS and view.groups[0].drop_reason == "timeout"
    assert view.num_groups == {"SAMPLED": NUM_GROUPS + 5, "ISSUED": 2, "DROPPED": 1}
    assert view.num_dropped == {"timeout": 1}


def test_a_later_attempt_discards_the_beginnings_of_those_after_it(tmp_path: Path) -> None:
    events = EventLog(tmp_path / EVENTS)
    for attempt, step in enumerate((4, 20, 30, 20), start=1):
        events.add("restored", "", attempt=attempt, policy_version=step)
    events.close()
    assert view_run(new_record(tmp_path)).attempts == {4: "attempt 1", 20: "attempt 4"}


def test_a_folder_with_a_record_alone_is_an_empty_view(tmp_path: Path) -> None:
    view = view_run(new_record(tmp_path))
    assert (view.config, view.rows, view.attempts, view.groups) == (None, [], {}, [])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"], "reading left a file behind"


def test_the_half_line_of_a_step_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    record = new_record(tmp_path)
    record.save_config(run_config())
    metrics = tmp_path / "metrics.jsonl"
    StepFile(metrics).add(1, {"objective/scores": 0.5})
    with metrics.open("a") as file:
        file.write('{"step": 2, "objec')
    view = view_run(record)
    assert view.rows == [{"step": 1, "objective/scores": 0.5}]
    assert view.config is not None and view.config.model.path == "m"
