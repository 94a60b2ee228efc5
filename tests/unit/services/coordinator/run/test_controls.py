import asyncio

import pytest

from services.coordinator.run.controls import RunControls, StopMode
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
