"""The clock of an episode, with a time that the test sets."""

import asyncio

import pytest

from services.coordinator.rollout.episodes import limits
from services.coordinator.rollout.episodes.limits import EpisodeClock
from tests.support.clock import Clock


def test_calls_that_wait_at_the_same_time_stop_it_once_until_the_last_has_what_it_waits_for() -> None:
    time = Clock()
    clock = EpisodeClock(10, time)
    first, second = clock.stopped(), clock.stopped()
    time.now += 1
    first.__enter__()
    time.now += 10
    second.__enter__()
    time.now += 20
    first.__exit__(None, None, None)
    assert clock.used_s == 1
    time.now += 40
    assert clock.used_s == 1, "the second call still waits"
    second.__exit__(None, None, None)
    time.now += 2
    assert clock.used_s == 3


def test_a_call_that_samples_while_none_waits_is_counted_once() -> None:
    time = Clock()
    clock = EpisodeClock(10, time)
    with clock.stopped():
        time.now += 5
    time.now += 3
    with clock.stopped(), clock.stopped():
        time.now += 7
    assert clock.used_s == 3


async def test_the_limit_ends_what_runs_and_not_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_POLL_S", 0.001)
    time = Clock()
    clock = EpisodeClock(0.01, time)
    is_waiting, may_go_on = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        with clock.stopped():
            is_waiting.set()
            await may_go_on.wait()

    async def play() -> None:
        async with clock.limit(), asyncio.TaskGroup() as tasks:
            tasks.create_task(waits())
            tasks.create_task(asyncio.Event().wait())

    playing = asyncio.create_task(play())
    await is_waiting.wait()
    time.now += 1000
    await asyncio.sleep(0.05)
    assert not playing.done(), "the clock stood still"
    may_go_on.set()
    while not playing.done():
        await asyncio.sleep(0)
        time.now += 1
    assert isinstance(playing.exception(), TimeoutError)
