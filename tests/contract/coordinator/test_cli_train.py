"""`shoal train` from start to end, of any kind: real processes and gRPC, workers that follow a script."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from services.coordinator.cli.train_session import SAME_SIGNAL_S
from services.coordinator.launcher.supervisor import GRACE_S
from shoal.rpc.auth.permissions import Role
from tests.support.local_stack import SHOAL, buf_curl, run_of_call, write_config
from tests.support.repository import ROOT
from tests.support.scripted_train_workers import STEP_BEGINS
from tests.support.scripted_workers import arithmetic_config
from tests.support.waiting import PATIENCE_S, block_until

LONG = ("--set", "run.num_steps=1000")
"""Longer than any test looks on."""


class Train:
    def __init__(self, *arguments: str, step_s: float = 0.05) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripted_train", "train", *arguments],
            cwd=ROOT, env={**os.environ, "SCRIPTED_STEP_S": str(step_s)}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.lines: list[str] = []
        self.children: list[psutil.Process] = []

    def until(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                self.children = psutil.Process(self.process.pid).children(recursive=True)
                return line
        raise AssertionError(f"{text!r} never appeared:\n{''.join(self.lines)}{self.process.communicate()[1]}")

    def end(self) -> tuple[int, str, str]:
        """Exit code, all progress, and standard error, once it has ended by itself."""
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, "".join(self.lines) + output, errors

    def survivors(self) -> list[psutil.Process]:
        return [child for child in self.children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    def child(self, module: str) -> psutil.Process:
        return next(child for child in self.children if module in child.cmdline())


@pytest.fixture
def train(tmp_path: Path, model: Path) -> Iterator[Callable[..., Train]]:
    """Starts `shoal train` of five quick steps, with an evaluation before and after."""
    held_out = {"sources": [{"task": "arithmetic", "task_size": 40, "task_seed": 9}], "num_prompts": 10}
    config = arithmetic_config(model, evaluation=held_out, checkpoint={"every_steps": 2})
    path = write_config(tmp_path / "run.toml", config)
    started: list[Train] = []

    def start(*arguments: str, step_s: float = 0.05) -> Train:
        what = () if "--resume" in arguments else (str(path), "--name", "sums")
        started.append(Train(*what, *arguments, "--data-dir", str(tmp_path / "runs"), step_s=step_s))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def test_it_trains_to_the_end_prints_a_summary_and_leaves_no_process(
    train: Callable[..., Train], tmp_path: Path
) -> None:
    run = train()
    run.until("step 1/5")
    code, output, errors = run.end()
    assert code == 0, output + errors
    assert [line for number in range(1, 6) if (line := f"step {number}/5") not in output] == [], output
    assert "held-out questions answered correctly:" in output and "10 questions" in output
    assert f"the run's folder: {tmp_path / 'runs' / 'sums'}" in output
    report = tmp_path / "runs" / "sums" / "report.html"
    assert output.splitlines()[-1].endswith(f" {report}") and report.exists(), output
    assert not run.survivors()
    logs = {path.name for path in (tmp_path / "runs" / "sums" / "logs").iterdir()}
    assert logs == {"coordinator.log", "learner.log"}


def test_a_private_run_trains_and_answers_its_own_user_alone(train: Callable[..., Train], tmp_path: Path) -> None:
    run = train("--private", *LONG)
    exported = run.until("export SHOAL_TOKEN_FILE=").partition("SHOAL_TOKEN_FILE=")[2].strip()
    address = run.until("--coordinator").partition("--coordinator ")[2].split()[0]
    run.until("step    2/1000")
    tokens = tmp_path / "runs" / "sums" / "tokens"
    assert exported == str(tokens / "operator") and tokens.stat().st_mode & 0o777 == 0o700
    status = [str(SHOAL), "run", "status", "--coordinator", address]
    found = {
        name: subprocess.run(
            status, env={**os.environ, **environment}, capture_output=True, timeout=PATIENCE_S
        ).returncode
        for name, environment in {
            "its user": {"SHOAL_TOKEN_FILE": exported},
            "another": {"SHOAL_TOKEN_FILE": ""},
        }.items()
    }
    assert found == {"its user": 0, "another": 7}
    secret = [(tokens / role).read_text() for role in Role]
    run.process.send_signal(signal.SIGINT)
    code, output, errors = run.end()
    assert code == 130, output + errors
    assert not tokens.exists(), "the tokens outlive the processes that accept them"
    logs = "".join(path.read_text(errors="replace") for path in (tmp_path / "runs" / "sums" / "logs").iterdir())
    assert not [token for token in secret if token in logs + output + errors]


def test_sigterm_ends_it_with_a_checkpoint_and_it_can_be_resumed(train: Callable[..., Train], tmp_path: Path) -> None:
    """Ctrl-C does the same: the next test has its exit code and its checkpoint."""
    run = train(*LONG, step_s=0.2)
    run.until("step    1/1000")
    run.process.send_signal(signal.SIGTERM)
    code, output, errors = run.end()
    assert code == 143, output + errors
    assert "stopping with a checkpoint" in output
    assert f"shoal train --resume sums --data-dir {tmp_path / 'runs'}" in output
    assert not run.survivors()
    assert list((tmp_path / "runs" / "sums").glob("checkpoints/*/manifest.json")), output
    # The scripted learner forgets its weights, so the test covers the path up to the restore alone.
    again = train("--resume", "sums")
    again.until("attempt 1 begins at step")
    again.process.kill()


def test_ctrl_c_writes_a_checkpoint_also_when_the_reader_of_the_output_has_ended_by_it(
    train: Callable[..., Train], tmp_path: Path
) -> None:
    run = train(*LONG, step_s=0.2)
    run.until("step    3/1000")
    assert run.process.stdout is not None
    run.process.stdout.close()  # As `shoal train ... | tee log` does: Ctrl-C ends tee as well.
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(PATIENCE_S) == 130
    record = json.loads((tmp_path / "runs" / "sums" / "run.json").read_text())
    assert record["state"] == "STOPPED", record
    assert record["last_checkpoint_id"] == f"step-{record['policy_version']:08d}", record
    run.process.stdout = None
    assert not run.survivors()


def test_a_run_that_nohup_started_outlives_its_terminal(train: Callable[..., Train]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Its processes inherit that.
    try:
        run = train("--set", "run.num_steps=6", step_s=0.2)
    finally:
        signal.signal(signal.SIGHUP, before)
    run.until("step 1/6")
    run.process.send_signal(signal.SIGHUP)
    code, output, errors = run.end()
    assert code == 0 and "step 6/6" in output, output + errors


def test_a_second_signal_ends_everything_at_once(train: Callable[..., Train], tmp_path: Path) -> None:
    run = train(step_s=600)
    run.until("held-out questions correctly")
    log = tmp_path / "runs" / "sums" / "logs" / "learner.log"
    block_until(lambda: STEP_BEGINS in log.read_text(), "a train step begins")
    run.process.send_signal(signal.SIGINT)
    run.until("Ctrl-C again ends everything at once")
    time.sleep(SAME_SIGNAL_S)  # Closer signals count as one.
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, output, errors = run.end()
    assert code == 130, output + errors
    assert "ending everything at once" in output
    assert time.monotonic() - began < GRACE_S, "it waited for the grace period of an orderly end"
    assert not run.survivors()


def test_a_run_goes_on_by_itself_when_its_processes_are_killed(train: Callable[..., Train], tmp_path: Path) -> None:
    run = train("--set", "run.num_steps=7", step_s=0.4)
    for count, module in enumerate(("services.coordinator", "tests.support.scripted_train_workers"), start=1):
        run.until("checkpoint step-")
        run.child(module).kill()
        run.until("is restarted (pid")
        run.until(f"attempt {count} begins at step")
    run.until("step 7/7")
    code, output, errors = run.end()
    assert code == 0, output + errors
    record = json.loads((tmp_path / "runs" / "sums" / "run.json").read_text())
    assert (record["state"], record["attempt"]) == ("FINISHED", 2), record
    sequence = [
        json.loads(line)["sequence"] for line in (tmp_path / "runs" / "sums" / "events.jsonl").read_text().splitlines()
    ]
    assert sequence == list(range(1, len(sequence) + 1)), "the events are numbered over the coordinator's restart"
    assert not run.survivors()


def test_a_signal_while_the_coordinator_is_away_ends_it_with_the_command_that_resumes(
    train: Callable[..., Train],
) -> None:
    run = train("--set", "run.num_steps=100", step_s=0.3)
    run.until("checkpoint step-")
    run.child("services.coordinator").kill()
    run.until("coordinator died")
    run.process.send_signal(signal.SIGINT)
    code, output, errors = run.end()
    assert code == 130, output + errors
    assert "resume from checkpoint step-" in output, output
    assert not run.survivors()


def test_an_outage_is_told_once_and_the_command_that_it_tells_ends_it(
    train: Callable[..., Train], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("SCRIPTED_REWARD_FAILS_WHILE", str(broken))
    run = train("--set", "reward.outage_window=8")
    line = run.until("then run: shoal ")
    runs = ["--data-dir", str(tmp_path / "runs")]
    listed = subprocess.run(
        [str(SHOAL), "run", "rollouts", "sums", "--failed", *runs], capture_output=True, text=True, check=True
    )
    assert "SAMPLED" in listed.stdout and "gsm8k FAILED" in listed.stdout, listed
    broken.unlink()
    command = shlex.split(line.partition("then run: ")[2].partition(" (")[0])
    subprocess.run([str(SHOAL), *command[1:]], check=True, capture_output=True)
    code, output, errors = run.end()
    assert code == 0 and output.count("the run is paused") == 1, output + errors


def test_a_run_that_loses_its_last_generator_ends_with_a_checkpoint_of_its_last_step(
    train: Callable[..., Train], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_GENERATOR_UNTIL", str(tmp_path / "end"))
    run = train("--set", "checkpoint.every_steps=1000", *LONG, step_s=0.2)
    run.until("step    1/1000")
    (tmp_path / "end").touch()
    code, output, errors = run.end()
    assert code == 1 and "generator" in errors and "exit code 2" in errors, output + errors
    record = json.loads((tmp_path / "runs" / "sums" / "run.json").read_text())
    step = record["policy_version"]
    assert record["state"] == "STOPPED" and 1 <= step < 1000, record
    assert f"resume from checkpoint step-{step:08d}" in errors, errors
    assert not run.survivors()


def test_data_that_the_coordinator_refuses_ends_it_before_a_worker_is_started(
    train: Callable[..., Train], tmp_path: Path
) -> None:
    run = train("--set", "data.max_prompt_tokens=3")
    code, output, errors = run.end()
    assert code == 2, output + errors
    assert "data.max_prompt_tokens" in errors and "3" in errors, errors
    assert "started" not in output
    assert not (tmp_path / "runs" / "sums").exists(), "a refused run left its folder behind"


def test_the_log_of_a_process_that_died_is_kept(
    train: Callable[..., Train], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_METRICS_PORT", "many")
    code, output, errors = train().end()
    log = tmp_path / "runs" / "sums" / "logs" / "coordinator.log"
    assert code == 1 and f"its log: {log}" in errors, output + errors
    assert "--metrics-port" in log.read_text()


def test_any_grpc_client_controls_a_live_run_and_kill_dash_nine_of_the_command_ends_every_process(
    train: Callable[..., Train],
) -> None:
    run = train("--set", "run.num_steps=100000")  # It must not end before the last call.
    address = run.until("the coordinator serves at").split()[-1]
    run.until("/100000 ")

    services = buf_curl("--list-services", f"http://{address}").split()
    assert {"shoal.v1.CoordinatorService", "grpc.health.v1.Health"} <= set(services)
    health = buf_curl(
        "-d", '{"service": "shoal.v1.CoordinatorService"}', f"http://{address}/grpc.health.v1.Health/Check"
    )
    assert json.loads(health) == {"status": "SERVING"}
    assert run_of_call(address, "PauseRun")["state"] == "RUN_STATE_PAUSED"
    paused = run_of_call(address, "GetRun")
    assert paused["state"] == "RUN_STATE_PAUSED"
    assert run_of_call(address, "ResumeRun")["state"] == "RUN_STATE_RUNNING"
    # The step that was under way at the pause may still have been counted.
    while int(run.until("/100000 ").partition("/")[0].split()[-1]) < int(str(paused["policyVersion"])) + 2:
        pass
    assert len(run.children) >= 2
    run.process.kill()
    block_until(lambda: not run.survivors(), "every process has ended")
