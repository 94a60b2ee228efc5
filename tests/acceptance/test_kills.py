"""Processes that are killed at random moments, or stop, with real engines, and nobody helps."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.local_stack import LocalStack, guessing_config, write_config
from tests.support.repository import ROOT

NUM_KILLS = 20
LOADING_S = 1200.0
"""Longest wait for workers that load their models, which takes a minute on an idle machine."""


@pytest.mark.timeout(7200)
def test_a_run_ends_in_spite_of_twenty_kills_and_uses_every_prompt_once(tmp_path: Path) -> None:
    config = guessing_config(
        tmp_path,
        grpo={"max_staleness": 1, "keep_zero_signal": True},
        checkpoint={"every_steps": 3},
        launch={"num_learner_ranks": 2, "num_generators": 2},
    )
    path = write_config(tmp_path / "run.toml", config)
    numbers = tmp_path / "kills.json"
    options = ("--kills", str(NUM_KILLS), "--seed", "13", "--data-dir", str(tmp_path / "runs"), "--json", str(numbers))
    done = subprocess.run(
        [sys.executable, "-u", "benchmarks/kills.py", str(path), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    print(done.stdout, done.stderr[-4000:])
    assert done.returncode in (0, 1), f"exit code {done.returncode}"
    measured = json.loads(numbers.read_text())
    assert not measured["problems"], measured["problems"]
    late = [kill for kill in measured["kills"] if kill["took_s"] > kill["bound_s"]]
    assert len(measured["kills"]) == NUM_KILLS and not late, f"{len(late)} kills cost more than their bound: {late}"


@pytest.mark.timeout(3000)
def test_a_rank_that_stops_ends_its_learner_at_the_deadline_of_the_step_and_the_run_goes_on(tmp_path: Path) -> None:
    config = guessing_config(
        tmp_path,
        grpo={"max_staleness": 1, "keep_zero_signal": True},
        checkpoint={"every_steps": 5},
        coordinator={"worker_timeout_s": LOADING_S},
        launch={"num_learner_ranks": 2},
        run={"num_steps": 100_000},
    )
    path = write_config(tmp_path / "run.toml", config)
    with LocalStack(tmp_path / "runs", "stops", str(path)) as stack:
        stack.until_step(6, LOADING_S)
        # For these steps alone: on a busy machine the first step after a restart may take longer. No checkpoint comes
        # any more, so that a train step is the command that hangs.
        stack.update("coordinator.train_step_timeout_s=20", "checkpoint.every_steps=1000000")
        stack.until_step(len(stack.metrics()) + 2, 600)
        (rank,) = [process for process in stack.services("learner") if process.environ().get("RANK") == "1"]
        rank.send_signal(signal.SIGSTOP)
        lost = stack.until("the learner is lost", lambda event: event["kind"] == "worker_lost", 240)
        stack.update("coordinator.train_step_timeout_s=3600")
        restored = stack.until("the run is restored", lambda event: event["kind"] == "restored", LOADING_S)
        stack.until("a step", lambda e: e["kind"] == "step" and e["sequence"] > restored["sequence"], 600)
        stack.process.send_signal(signal.SIGINT)
        assert stack.wait(600) == 130, stack.tail()
    assert not rank.is_running(), "the rank that stopped was left behind"
    restarts = [event["message"] for event in stack.of_kind("restarting")]
    assert len(restarts) == 1, restarts
    assert "TRAIN_STEP" in lost["message"] or "20 s" in lost["message"], lost
    print(restarts, lost["message"])


@pytest.mark.timeout(3000)
def test_a_rank_that_stops_ends_its_learner_long_before_the_deadline_of_an_hour(tmp_path: Path) -> None:
    config = guessing_config(
        tmp_path,
        grpo={"max_staleness": 1, "keep_zero_signal": True},
        coordinator={"train_step_timeout_s": 3600.0, "worker_timeout_s": LOADING_S},
        checkpoint={"every_steps": 2, "timeout_s": 3600.0},
        launch={"num_learner_ranks": 2},
        run={"num_steps": 12},
    )
    with LocalStack(tmp_path / "runs", "stops", str(write_config(tmp_path / "run.toml", config))) as stack:
        stack.until_step(3, LOADING_S)
        (rank,) = [process for process in stack.services("learner") if process.environ().get("RANK") == "1"]
        rank.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        lost = stack.until("the learner is lost", lambda event: event["kind"] == "worker_lost", 300)
        took_s = time.monotonic() - began
        assert stack.wait(LOADING_S) == 0, stack.tail()
    assert "rank 1" in lost["message"] and "60 s" in lost["message"], lost
    assert took_s < 180, f"the stopped rank was noticed after {took_s:.0f} s"
    assert not rank.is_running(), "the rank that stopped was left behind"
    print(f"noticed after {took_s:.0f} s: {lost['message']}")
