"""Events of long work."""

import asyncio
from pathlib import Path

import pytest

from services.coordinator.store import long_work
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.long_work import shown_alive
from shoal.v1.coordinator_pb2 import RunEvent
from tests.support.watched_events import past, watched
from tests.support.wordings import has_all


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventLog:
    monkeypatch.setattr(long_work, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(long_work, "EVERY_S", 0.0)
    return EventLog(tmp_path / EVENTS)


async def first(events: EventLog, count: int) -> list[RunEvent]:
    found: list[RunEvent] = []
    async with asyncio.timeout(60):
        async for event in watched(events):
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_long_work_says_how_far_it_is_until_it_ends(events: EventLog) -> None:
    parts = iter(["writing weights", "", "computing digests", *[""] * 1000])
    async with shown_alive(events, "writing checkpoint c1", lambda: next(parts, "")):
        one, two = await first(events, 2)
    assert one.kind == "progress" and has_all(one.message, "writing checkpoint c1", "writing weights", "0 s")
    assert (one.attributes["work"], two.attributes["state"]) == ("writing checkpoint c1", "computing digests")
    events.close()
    await asyncio.sleep(0)
    assert len([event async for event in watched(events)]) == 2


async def test_work_that_fails_is_not_shown_any_more(events: EventLog) -> None:
    with pytest.raises(RuntimeError):
        async with shown_alive(events, "writing the trained model", lambda: "at work"):
            await first(events, 1)
            raise RuntimeError
    num_events = len(past(events))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(past(events)) == num_events
