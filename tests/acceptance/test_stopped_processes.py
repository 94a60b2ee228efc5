"""`shoal train` whose processes are stopped, as one that hangs as a whole: real processes, scripted workers."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.contract.conftest import model
from tests.contract.coordinator.test_cli_train import Train, train

__all__ = ["model", "train"]


def test_a_worker_that_is_stopped_loses_its_lease_is_killed_and_comes_back(
    train: Callable[..., Train], tmp_path: Path
) -> None:
    run = train("--set", "run.num_steps=9", step_s=0.5)
    run.until("step 3/9")
    worker = run.child("tests.support.scripted_train_workers")
    worker.suspend()
    run.until("it does not answer; it is killed")
    run.until("learner is restarted")
    assert not psutil.pid_exists(worker.pid) or not worker.is_running()
    code, output, errors = run.end()
    assert code == 0, output + errors
    assert "step 9/9" in output, output


def test_a_coordinator_that_is_stopped_is_killed_and_goes_on_with_its_run(
    train: Callable[..., Train], tmp_path: Path
) -> None:
    run = train("--set", "run.num_steps=9", step_s=0.5)
    run.until("step 3/9")
    coordinator = run.child("services.coordinator")
    stopped_at = time.monotonic()
    coordinator.suspend()
    run.until("coordinator hangs: it does not answer; it is killed")
    noticed_s = time.monotonic() - stopped_at
    assert noticed_s < 60, f"noticed after {noticed_s:.0f} s"
    run.until("coordinator is restarted")
    code, output, errors = run.end()
    assert code == 0, output + errors
    assert "step 9/9" in output, output
    assert not coordinator.is_running()
