"""The window of events in memory, and the pages that are read from the file again."""

import asyncio
import gc
from pathlib import Path

import pytest

from services.coordinator.store import event_pages as module
from services.coordinator.store.event_pages import EventPage
from services.coordinator.store.events import EVENTS, EventLog
from shoal.errors import DataLoss
from tests.support.small_disk import small_disk
from tests.support.watched_events import past, watched

NUM_EVENTS = 1000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventLog:
    """A log that keeps 40 kB of its events, in pages of 4 kB."""
    monkeypatch.setattr(module, "PAGE_BYTES", 4000)
    monkeypatch.setattr(module, "KEPT_BYTES", 40_000)
    return EventLog(tmp_path / EVENTS)


def pages() -> list[EventPage]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is EventPage]


def fill(log: EventLog, num_events: int = NUM_EVENTS) -> None:
    for number in range(num_events):
        log.add("step", f"step {number}", step=number)


def in_memory() -> int:
    return sum(page.num_bytes for page in pages())


async def test_only_the_newest_events_are_in_memory_and_watchers_get_all_of_them(log: EventLog) -> None:
    fill(log)
    assert in_memory() <= 44_000, f"{in_memory()} bytes of {NUM_EVENTS} events are in memory"
    log.close()
    for after in (0, 1, 777, NUM_EVENTS - 1, NUM_EVENTS, NUM_EVENTS + 5):
        for batches in (False, True):
            received = [event.sequence async for event in watched(log, after, batches=batches)]
            assert received == list(range(after + 1, NUM_EVENTS + 1)), (after, batches)
    assert [event.message for event in past(log)] == [f"step {number}" for number in range(NUM_EVENTS)]
    assert in_memory() <= 44_000 + 8 * 4500, f"{in_memory()} bytes in memory after watchers have read everything"


async def test_a_log_that_is_opened_again_keeps_the_newest_events_alone_and_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 4000)
    monkeypatch.setattr(module, "KEPT_BYTES", 40_000)
    fill(EventLog(tmp_path / EVENTS))
    again = EventLog(tmp_path / EVENTS)
    assert in_memory() <= 44_000, f"{in_memory()} bytes in memory"
    again.add("restored", "here")
    again.close()
    assert [event.sequence async for event in watched(again)] == list(range(1, NUM_EVENTS + 2))


async def test_watchers_of_old_events_share_what_is_read_for_them(log: EventLog) -> None:
    fill(log)
    before = len(pages())
    watchers = [watched(log) for _ in range(50)]
    assert {(await each).sequence for each in [asyncio.ensure_future(anext(watcher)) for watcher in watchers]} == {1}
    assert len(pages()) == before + 1, f"{len(pages()) - before} pages are in memory for 50 watchers of the same events"
    for watcher in watchers:
        await watcher.aclose()


async def test_a_watcher_that_stands_still_in_old_events_goes_on_without_a_gap(log: EventLog) -> None:
    fill(log, 500)
    slow, received = watched(log), list[int]()
    for _ in range(10):
        received.append((await anext(slow)).sequence)
    fill(log, 1000)
    log.close()
    received += [event.sequence async for event in slow]
    assert received == list(range(1, 1501))


async def test_events_that_a_full_disk_does_not_take_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 4000)
    monkeypatch.setattr(module, "KEPT_BYTES", 8000)
    with small_disk(tmp_path / "disk", "256k") as disk:
        log = EventLog(disk.folder / EVENTS)
        disk.fill()
        fill(log, 300)
        assert [event.sequence for event in past(log)] == list(range(1, 301))
        held = in_memory()
        disk.free()
        fill(log, 300)
        assert in_memory() < held / 2, f"{held} bytes while the disk was full, {in_memory()} after that"
        log.close()
        assert [event.sequence async for event in watched(log)] == list(range(1, 601))


@pytest.mark.parametrize("change", ["deleted", "shortened"])
async def test_old_events_whose_file_is_gone_are_data_loss_and_new_ones_are_delivered(
    log: EventLog, tmp_path: Path, change: str
) -> None:
    fill(log)
    path = tmp_path / EVENTS
    if change == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataLoss, match=r"events\.jsonl"):
        await anext(watched(log))
    assert (await anext(watched(log, NUM_EVENTS - 1))).sequence == NUM_EVENTS
