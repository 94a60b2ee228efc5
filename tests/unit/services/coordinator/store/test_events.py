"""The event log: written, read, and followed by another process."""

import asyncio
import json
import logging
from pathlib import Path
from unittest.mock import patch

import pytest

from services.coordinator.store import events as module
from services.coordinator.store.event_pages import PAGE_BYTES
from services.coordinator.store.events import EVENTS, EventLog, PastLogs, follow_events, read_events
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.telemetry.logs import JsonFormatter
from shoal.v1.coordinator_pb2 import RunEvent, WatchRunResponse
from shoal.wire.json_form import json_line
from tests.support.watched_events import watched


def _log(folder: Path, *kinds: str) -> EventLog:
    log = EventLog(folder / EVENTS)
    for kind in kinds:
        log.add(kind, kind, step=1)
    return log


async def test_a_line_that_is_not_whole_hides_no_event_after_it(tmp_path: Path) -> None:
    _log(tmp_path, "state", "step").close()
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes()[:-20])
    assert [event.kind for event in read_events(path)] == ["state"]
    _log(tmp_path, "restored").close()
    assert [(event.sequence, event.kind) for event in read_events(path)] == [(1, "state"), (2, "restored")]


async def test_the_file_has_the_events_that_watchers_receive_in_the_one_json_form(tmp_path: Path) -> None:
    log = _log(tmp_path, "state", "step")
    log.close()
    received = [event async for event in watched(log)]
    assert (tmp_path / EVENTS).read_text().splitlines() == [json_line(event) for event in received]
    assert read_events(tmp_path / EVENTS) == received


async def test_text_that_is_not_unicode_and_numbers_that_are_not_finite_break_no_run(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS)
    log.add("notice", "cannot read \udcff", path="\udcff", rate=float("nan"))
    log.close()
    [event] = read_events(tmp_path / EVENTS)
    assert (event.message, event.attributes["path"]) == ("cannot read ?", "?")


def test_the_events_of_an_older_shoal_are_refused_with_the_cure(tmp_path: Path) -> None:
    older = {"sequence": 1, "time_s": 1.0, "kind": "state", "message": "", "attributes": {}}
    (tmp_path / EVENTS).write_text(json.dumps(older) + "\n")
    with pytest.raises(FailedPrecondition, match=r"events\.jsonl.* rename the file") as refused:
        read_events(tmp_path / EVENTS)
    assert refused.value.reason == ErrorReason.EVENTS_VERSION


async def test_a_follower_in_another_process_gets_every_event_until_nobody_drives_the_run(tmp_path: Path) -> None:
    driven = True
    seen: list[RunEvent] = []

    async def follow() -> None:
        async for event in follow_events(tmp_path / EVENTS, lambda: driven, after_sequence=1):
            seen.append(event)
            first.set()

    first = asyncio.Event()
    following = asyncio.create_task(follow())
    log = _log(tmp_path, "state", "step")
    await first.wait()
    log.add("checkpoint", "written")
    log.close()
    driven = False
    await following
    assert [(event.sequence, event.kind) for event in seen] == [(2, "step"), (3, "checkpoint")]


async def test_following_a_run_without_events_and_without_a_coordinator_ends(tmp_path: Path) -> None:
    assert [event async for event in follow_events(tmp_path / EVENTS, lambda: False)] == []


async def test_a_thousand_watchers_of_an_event_take_turns_with_the_runs_own_work(tmp_path: Path) -> None:
    log = _log(tmp_path)
    received: list[int] = []

    async def watch() -> None:
        async for event in watched(log):
            received.append(event.sequence)

    watching = [asyncio.create_task(watch()) for _ in range(1000)]
    await asyncio.sleep(0)
    log.add("step", "one")
    most, before = 0, 0
    while len(received) < 1000:
        await asyncio.sleep(0)  # One round of everything that is ready.
        most, before = max(most, len(received) - before), len(received)
    assert most <= 2, f"{most} of 1000 watchers were served in one round of the event loop"
    log.close()
    await asyncio.gather(*watching)


async def test_past_events_come_in_few_responses_to_watchers_that_take_several_at_once(tmp_path: Path) -> None:
    log = _log(tmp_path, *["step"] * 5000)
    log.add("completions", "x" * (1 << 20))
    log.add("step", "last")
    log.close()
    sizes = [len(response) async for response in log.watch(batches=True)]
    assert len(sizes) < 40, f"5002 events in {len(sizes)} responses"
    assert max(sizes) < (1 << 20) + PAGE_BYTES, "a large event makes no response larger than it is"
    assert [event.sequence async for event in watched(log, batches=True)] == list(range(1, 5003))


async def test_lines_of_a_file_that_are_followed_in_parts_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", 100)
    _log(tmp_path, "a", "b" * 500, "c").close()
    assert [event.sequence async for event in follow_events(tmp_path / EVENTS, lambda: False)] == [1, 2, 3]


async def test_of_past_events_only_those_that_are_asked_for_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / EVENTS
    log = EventLog(path)
    for number in range(2000):
        log.add("step" if number % 100 == 0 else "publish", str(number))
    log.close()
    parsed: list[bytes] = []
    parse = module._parse

    def counting(line: bytes, path: Path) -> RunEvent | None:
        parsed.append(line)
        return parse(line, path)

    monkeypatch.setattr(module, "_parse", counting)
    again = EventLog(path)
    assert len(parsed) <= 10, f"{len(parsed)} of 2000 events were parsed to open the log"
    again.add("step", "one more")
    received = [event.sequence async for event in follow_events(path, lambda: False, after_sequence=1990)]
    assert received == list(range(1991, 2002)) and len(parsed) <= 25, f"{len(parsed)} were parsed for the last 11"
    steps = [event.message async for event in follow_events(path, lambda: False, kinds=("step",))]
    assert steps == [*map(str, range(0, 2000, 100)), "one more"] and len(parsed) <= 60, f"{len(parsed)} were parsed"


NUM_EVENTS = 300


@pytest.fixture
def log(tmp_path: Path) -> Path:
    written = EventLog(tmp_path / EVENTS)
    for number in range(NUM_EVENTS):
        written.add("step", f"step {number}", step=number)
    return tmp_path / EVENTS


async def watched_past(logs: PastLogs, path: Path, after_sequence: int = 0, *, batches: bool = True) -> list[int]:
    numbers: list[int] = []
    async for serialized in logs.watch(path, after_sequence, batches=batches):
        response = WatchRunResponse.FromString(serialized)
        numbers += [event.sequence for event in ([*response.events] if batches else [response.event])]
    return numbers


async def test_twenty_watchers_of_an_ended_run_have_each_event_parsed_once(log: Path) -> None:
    logs = PastLogs()
    with patch.object(module, "_parse", side_effect=module._parse) as parse:
        slow = logs.watch(log, 0, batches=True)
        await anext(slow)  # It holds the log: on a busy machine the first may be done before the last begins.
        found = await asyncio.gather(*(watched_past(logs, log, batches=number % 2 == 0) for number in range(20)))
    assert all(numbers == list(range(1, NUM_EVENTS + 1)) for numbers in found)
    assert parse.call_count < 2 * NUM_EVENTS, f"{parse.call_count} lines were parsed for {NUM_EVENTS} events"


async def test_a_watcher_begins_after_the_event_that_it_names_and_reading_changes_no_byte(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b'{"sequence": 301, "ki')  # What a killed coordinator leaves.
    before = log.read_bytes()
    assert await watched_past(PastLogs(), log, NUM_EVENTS - 2) == [NUM_EVENTS - 1, NUM_EVENTS]
    assert log.read_bytes() == before


async def test_a_log_that_has_grown_since_is_read_anew(log: Path) -> None:
    logs = PastLogs()
    slow = logs.watch(log, 0, batches=True)
    await anext(slow)  # It holds the log.
    EventLog(log).add("state", "FINISHED")  # Another coordinator went on with the run.
    assert (await watched_past(logs, log, NUM_EVENTS - 1)) == [NUM_EVENTS, NUM_EVENTS + 1]
    assert await watched_past(logs, log.with_name("no-such-log")) == []


def test_the_log_has_what_an_event_says_without_its_tables(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "run-7").mkdir()
    log = EventLog(tmp_path / "run-7" / "events.jsonl")
    log.add("step_skipped", "step 3 was skipped", reason="no signal", num_in_a_row=2, unscored={"a": 1}, name="x")
    [record] = caplog.records
    line = json.loads(JsonFormatter("shoal-coordinator").format(record))
    assert (line["event"], line["message"], line["run_id"]) == ("step_skipped", "step 3 was skipped", "run-7"), line
    assert line["attributes"] == {"reason": "no signal", "num_in_a_row": 2, "name": "x"}, line
