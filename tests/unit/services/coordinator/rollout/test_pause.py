import asyncio
import time

import pytest

from services.coordinator.rollout.pause import Pause


def test_the_clock_of_a_run_stands_still_in_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pause = Pause()
    read = []
    for command in (pause.pause, pause.pause, pause.resume, pause.resume, pause.pause):
        began = pause.running_s()
        now += 10
        read.append(pause.running_s() - began)
        command()
    assert read == [10, 0, 0, 10, 10]


async def test_an_evaluation_in_a_pause_ends_what_is_sampled_for_training_and_runs_the_clock() -> None:
    pause = Pause()
    ended = asyncio.Event()

    async def train() -> int:
        num_tries = 0
        while True:
            num_tries += 1
            async with pause.sampling_for_training():
                if num_tries == 1:
                    await asyncio.Event().wait()
                return num_tries
            ended.set()
            await pause.unpaused()

    training = asyncio.create_task(train())
    await asyncio.sleep(0)
    pause.pause()
    stopped = pause.running_s()
    assert pause.stands_still and pause.running_s() == stopped
    pause.begin_evaluation_in_pause()
    await ended.wait()
    assert pause.is_paused and not pause.stands_still
    began = pause.running_s()
    await asyncio.sleep(0.02)
    assert pause.running_s() > began, "the clock stands still in an evaluation"
    async with pause.sampling_for_training():
        await asyncio.Event().wait()  # Nothing begins for training meanwhile.
    pause.end_evaluation_in_pause()
    assert pause.stands_still and not training.done()
    pause.resume()
    assert await training == 2
    assert not pause.stands_still and pause.running_s() >= began
