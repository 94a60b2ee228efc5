import asyncio
import time

import pytest

from services.coordinator.rollout.controls import RunControls, StopMode
from shoal.errors import FailedPrecondition


def test_a_stop_now_overrides_a_drain_and_not_the_reverse() -> None:
    controls = RunControls()
    for requested, expected in ((StopMode.DRAIN, StopMode.DRAIN), (StopMode.NOW, StopMode.NOW)):
        controls.request_stop(requested)
        assert controls.stop is expected
    controls.request_stop(StopMode.DRAIN)
    assert controls.stop is StopMode.NOW


def test_a_stop_ends_a_pause() -> None:
    controls = RunControls()
    controls.pause()
    controls.request_stop(StopMode.DRAIN)
    assert not controls.is_paused and controls.num_pauses == 1


async def test_waiting_requests_are_refused_and_canceled_ones_are_left_alone() -> None:
    controls = RunControls()
    waiting, canceled = controls.request_checkpoint(), controls.request_evaluation()
    canceled.cancel()
    controls.refuse_requests(FailedPrecondition("the run has ended"))
    with pytest.raises(FailedPrecondition, match="has ended"):
        await waiting
    assert canceled.cancelled()


async def test_work_is_canceled_when_the_run_must_stop_now() -> None:
    controls = RunControls()
    begun, canceled = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            await asyncio.sleep(0)
            canceled.set()

    waiting = asyncio.create_task(controls.unless_stopped(work()))
    await begun.wait()
    controls.request_stop(StopMode.DRAIN)
    await asyncio.sleep(0)
    assert not canceled.is_set(), "a run that drains completes its work"
    controls.request_stop(StopMode.NOW)
    assert await waiting is None
    assert canceled.is_set(), "the work goes on after the run has stopped"


def test_the_clock_of_a_run_stands_still_in_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    controls = RunControls()
    read = []
    for command in (controls.pause, controls.pause, controls.resume, controls.resume, controls.pause):
        began = controls.running_s()
        now += 10
        read.append(controls.running_s() - began)
        command()
    assert read == [10, 0, 0, 10, 10]


async def test_an_evaluation_in_a_pause_ends_what_is_sampled_for_training_and_runs_the_clock() -> None:
    controls = RunControls()
    ended = asyncio.Event()

    async def train() -> int:
        num_tries = 0
        while True:
            num_tries += 1
            async with controls.sampling_for_training():
                if num_tries == 1:
                    await asyncio.Event().wait()
                return num_tries
            ended.set()
            await controls.unpaused()

    training = asyncio.create_task(train())
    await asyncio.sleep(0)
    controls.pause()
    stopped = controls.running_s()
    assert controls.stands_still and controls.running_s() == stopped
    controls.begin_evaluation_in_pause()
    await ended.wait()
    assert controls.is_paused and not controls.stands_still
    began = controls.running_s()
    await asyncio.sleep(0.02)
    assert controls.running_s() > began, "the clock stands still in an evaluation"
    async with controls.sampling_for_training():
        await asyncio.Event().wait()  # Nothing begins for training meanwhile.
    controls.end_evaluation_in_pause()
    assert controls.stands_still and not training.done()
    controls.resume()
    assert await training == 2
    assert not controls.stands_still and controls.running_s() >= began


async def test_a_request_whose_caller_has_gone_leaves_those_that_wait() -> None:
    controls = RunControls()
    gone = [controls.request_checkpoint(), controls.request_evaluation()]
    stay = [controls.request_checkpoint(), controls.request_evaluation()]
    for request in gone:
        request.cancel()
    await asyncio.sleep(0)
    assert [controls.checkpoint_requests, controls.evaluation_requests] == [[stay[0]], [stay[1]]]
    controls.refuse_requests(FailedPrecondition("the run has ended"))
    assert all(isinstance(request.exception(), FailedPrecondition) for request in stay)
