"""Lifecycle of a worker."""

import asyncio
import signal

import pytest

from shoal.config.live import updated_config
from shoal.config.run import RunConfig
from shoal.errors import FailedPrecondition, Unavailable
from shoal.v1 import worker_pb2
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec
from tests.support.configs import run_config
from tests.support.loopback import NoProgram
from tests.support.waiting import settled


def config(seed: int = 0) -> RunConfig:
    return run_config(run={"seed": seed})


def state(lifecycle: Lifecycle) -> str:
    return worker_pb2.WorkerState.Name(lifecycle.status(worker_pb2.WorkerLoad()).state).removeprefix("WORKER_STATE_")


@pytest.fixture
def ends() -> list[str]:
    return []


@pytest.fixture
def lifecycle(ends: list[str], monkeypatch: pytest.MonkeyPatch) -> Lifecycle:
    monkeypatch.setattr("shoal.worker.lifecycle.os.kill", lambda pid, number: ends.append(signal.Signals(number).name))
    return Lifecycle("the worker", Reexec(NoProgram(), end=lambda: ends.append("restart")))


async def nothing() -> None:
    """Loads nothing."""


async def test_a_load_leads_from_idle_to_ready(lifecycle: Lifecycle) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    assert state(lifecycle) == "IDLE" and not lifecycle.is_configured("run", config())
    lifecycle.load("run", config(), work, message="loading the model")
    assert state(lifecycle) == "LOADING" and lifecycle.is_configured("run", config())
    assert not lifecycle.is_configured("run", config(seed=1)) and not lifecycle.is_configured("other", config())
    with pytest.raises(FailedPrecondition, match=r"LOADING.* READY: loading the model"):
        raise lifecycle.not_ready()
    gate.set()
    await settled()
    assert state(lifecycle) == "READY"


async def test_what_changes_at_once_in_an_active_run_needs_no_other_load(lifecycle: Lifecycle) -> None:
    lifecycle.load("run", config(), settled, message="")
    await settled()
    changed = updated_config(config(), {"checkpoint": {"every_steps": 3}, "evaluation": {"every_steps": 2}})
    assert lifecycle.is_configured("run", changed)
    assert not lifecycle.is_configured("run", updated_config(config(), {"learner": {"learning_rate": 3e-4}}))


async def test_the_status_says_what_long_work_does_now_but_not_over_a_failure(lifecycle: Lifecycle) -> None:
    async def work() -> None:
        lifecycle.progress("reading the weights")
        await gate.wait()

    def message() -> str:
        return lifecycle.status(worker_pb2.WorkerLoad()).message

    gate = asyncio.Event()
    lifecycle.progress("nothing is loaded yet")
    assert message() == ""
    lifecycle.load("run", config(), work, message="loading the model")
    assert message() == "loading the model"
    await settled()
    assert message() == "reading the weights"
    gate.set()
    await settled()
    assert (state(lifecycle), message()) == ("READY", "")
    lifecycle.progress("writing weights")
    assert (state(lifecycle), message()) == ("READY", "writing weights")
    lifecycle.fail("the disk burns")
    lifecycle.progress("")
    assert (state(lifecycle), message()) == ("FAILED", "the disk burns")


async def test_a_newer_load_begins_when_the_cleanup_of_the_earlier_one_has_ended(lifecycle: Lifecycle) -> None:
    order, has_begun = [], asyncio.Event()

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            order.append("first ended")

    async def second() -> None:
        order.append("second began")
        has_begun.set()

    lifecycle.load("run", config(), first, message="")
    await settled()
    lifecycle.load("other", config(), second, message="")
    await asyncio.wait_for(has_begun.wait(), 60)
    await settled()
    assert order == ["first ended", "second began"] and state(lifecycle) == "READY"


async def test_the_first_reason_to_end_stands_and_ends_the_process_once(lifecycle: Lifecycle, ends: list[str]) -> None:
    async def work() -> None:
        raise Unavailable("later")

    lifecycle.load("run", config(), work, message="")
    lifecycle.fail("the engine has died")
    lifecycle.fail("later")
    await settled()
    status = lifecycle.status(worker_pb2.WorkerLoad())
    assert (status.state, status.message) == (worker_pb2.WORKER_STATE_FAILED, "the engine has died")
    assert ends == ["SIGTERM"]
    assert lifecycle.is_configured("run", config())
    with pytest.raises(Unavailable, match=": the engine has died") as caught:
        lifecycle.is_configured("other", config())
    assert caught.value.reason == "ENDING"
    assert lifecycle.restart("other").reason == "ENDING"


async def test_a_worker_that_restarts_refuses_every_configuration_and_ignores_later_errors(
    lifecycle: Lifecycle, ends: list[str]
) -> None:
    lifecycle.load("run", config(), nothing, message="")
    await settled()
    assert lifecycle.restart("it serves run run").reason == "STARTING_OVER"
    for run_id in ("run", "other"):
        with pytest.raises(Unavailable, match="it serves run run") as caught:
            lifecycle.is_configured(run_id, config())
        assert caught.value.reason == "STARTING_OVER"
    lifecycle.fail("a rank ended")
    assert state(lifecycle) == "READY" and ends == ["restart"]


async def test_what_is_loaded_may_replace_the_state_ready_but_no_other(lifecycle: Lifecycle) -> None:
    paused = (worker_pb2.WORKER_STATE_PAUSED, "paused by PauseGeneration")
    assert lifecycle.status(worker_pb2.WorkerLoad(), loaded=paused).state == worker_pb2.WORKER_STATE_IDLE
    lifecycle.load("run", config(), nothing, message="")
    await settled()
    status = lifecycle.status(worker_pb2.WorkerLoad(capacity=2), loaded=paused)
    assert (status.state, status.message, status.load.capacity) == (*paused, 2)


async def test_a_worker_that_was_told_to_end_is_not_told_again_when_it_fails(
    lifecycle: Lifecycle, ends: list[str]
) -> None:
    assert lifecycle.leave() and state(lifecycle) == "LEAVING"
    with pytest.raises(Unavailable, match="the worker is ending"):
        lifecycle.is_configured("run", config())
    lifecycle.fail("its step did not end in time")
    assert state(lifecycle) == "FAILED" and not ends, "a second signal would end it at once"


async def test_a_worker_that_ends_by_itself_does_not_leave(lifecycle: Lifecycle) -> None:
    lifecycle.fail("a rank died")
    assert not lifecycle.leave() and state(lifecycle) == "FAILED"
