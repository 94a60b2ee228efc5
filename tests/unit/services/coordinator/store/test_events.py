import json
from pathlib import Path

from services.coordinator.store.events import EventLog, read_events


async def test_a_line_that_is_no_event_hides_no_other(tmp_path: Path) -> None:
    event = {"time_s": 1.0, "kind": "state", "message": "", "attributes": {}}
    (tmp_path / "events.jsonl").write_text(f'[1]\n{{}}\n{json.dumps(event)}\n{{"time_s": 2')
    log = read_events(tmp_path / "events.jsonl")
    assert [event.kind async for event in log.watch()] == ["state"]


async def test_a_log_that_is_opened_again_continues_its_sequence(tmp_path: Path) -> None:
    first = EventLog(tmp_path / "events.jsonl")
    first.add("state", "running")
    first.close()
    again = EventLog(tmp_path / "events.jsonl")
    again.add("step", "step 1/2", step=1)
    again.close()
    assert [(event.sequence, event.kind) async for event in again.watch(after_sequence=1)] == [(2, "step")]
