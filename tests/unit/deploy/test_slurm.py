"""The batch files start the services on the right nodes, and end them in the right order, under a scripted Slurm.

The coordinator, its certificates and its health are real; workers and the run are scripted. Node names are addresses
of the loopback interface, where ports are free.
"""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tools.manifests import SLURM, script_problems

RUN_EXIT_CODE = 7
PATIENCE_S = 120

# Starts the command once, as on the first node of its list. A signal to srun itself kills it, as Slurm does.
SRUN = """
import itertools, os, signal, subprocess, sys
words = sys.argv[1:]
options = list(itertools.takewhile(lambda word: word.startswith("--"), words))
values = dict(option[2:].partition("=")[::2] for option in options)
environment = os.environ | {"SLURMD_NODENAME": values["nodelist"].split(",")[0]}
process = subprocess.Popen(words[len(options):], env=environment)
signal.signal(signal.SIGTERM, lambda *_: process.kill())
with open(os.environ["TRACE"], "a") as trace:
    print("step", *options, file=trace)
with open(os.environ["STEPS"], "a") as steps:
    print(f"17.{process.pid} {values['job-name']}", file=steps)
sys.exit(process.wait())
"""
# A step's number is the process id of its command.
SCANCEL = """
import os, signal, sys
try:
    name, step = sys.argv[1:]
    os.kill(int(step.partition(".")[2]), signal.Signals["SIG" + name.partition("=")[2]])
except ProcessLookupError:
    sys.exit(1)
"""
# Real for the coordinator and its health; a worker waits for its end.
PYTHON = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def trace(*words):
    with open(os.environ["TRACE"], "a") as file:
        print(*words, file=file)
name = [word for word in sys.argv if word.startswith(("services.", "shoal."))][0]
trace("pid", name, os.getpid())
trace("start", name, *sys.argv[1:])
if name in ("services.coordinator", "shoal.rpc.healthcheck"):
    import subprocess
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    process = subprocess.Popen([sys.executable, *sys.argv[1:]])
    if name == "services.coordinator":
        trace("pid", "coordinator", process.pid)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    if name == "services.coordinator":
        trace("end", name)
    sys.exit(code % 256)
signal.sigwait({signal.SIGTERM})
trace("end", name)
"""
SHOAL = """
import os, signal, sys
if "certs" in sys.argv:
    from services.coordinator.cli import main
    main()
with open(os.environ["TRACE"], "a") as file:
    print("shoal", *sys.argv[1:], file=file)
if os.environ["RUN_LASTS"]:
    signal.pause()
sys.exit(int(os.environ["RUN_EXIT_CODE"]))
"""


def test_the_scripts_pass_shellcheck() -> None:
    scripts = sorted([*SLURM.glob("*.sbatch"), *SLURM.glob("*.sh")])
    assert len(scripts) == 10
    assert not script_problems(scripts)


def test_shellcheck_finds_a_mistake(tmp_path: Path) -> None:
    script = tmp_path / "wrong.sh"
    script.write_text("#!/usr/bin/env bash\nrm $1\n")
    assert any("SC2086" in problem for problem in script_problems([script]))


class ScriptedSlurm:
    """A job of Slurm in a folder, with scripted programs first on its PATH."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder, self.trace = folder, folder / "trace"
        network = f"127.{random.randrange(64, 128)}.{random.randrange(256)}"
        self.nodes = [f"{network}.{number}" for number in range(1, num_nodes + 1)]
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("python", PYTHON), ("shoal", SHOAL)):
            (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / "scontrol").write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(self.nodes))
        (programs / "squeue").write_text('#!/bin/sh\ncat "$STEPS"\n')
        (programs / "activate").write_text(f"export PATH={shlex.quote(str(programs))}:$PATH\n")
        for program in programs.iterdir():
            program.chmod(0o755)

    def start(self, batch_file: str, *arguments: str, run_lasts: bool = False) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", str(SLURM / batch_file), *arguments],
            cwd=ROOT,
            env=self.environment() | {"RUN_LASTS": "1" if run_lasts else ""},
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "nodes",
            "SHOAL_VENV": str(self.folder),
            "SHOAL_DATA_DIR": str(self.folder / "runs"),
            "PYTHONPATH": str(ROOT),
            "TRACE": str(self.trace),
            "STEPS": str(self.folder / "steps"),
            "RUN_EXIT_CODE": str(RUN_EXIT_CODE),
        }

    def wait_for(self, job: "subprocess.Popen[str]", first: str, count: int = 1) -> list[str]:
        """Waits until the trace has so many lines with a first word; returns them."""
        deadline = time.monotonic() + PATIENCE_S
        while len(lines := self.lines(first)) < count:
            assert time.monotonic() < deadline and job.poll() is None, job.communicate()[1]
            time.sleep(0.1)
        return lines

    def lines(self, first: str) -> list[str]:
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        return [line.removeprefix(first).strip() for line in lines if line.startswith(f"{first} ")]


def test_a_job_starts_the_services_on_its_nodes_and_ends_the_coordinator_first(tmp_path: Path) -> None:
    slurm = ScriptedSlurm(tmp_path, 4)
    job = slurm.start("nodes-4.sbatch", "my.toml", "--set", "run.num_steps=3")
    _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == RUN_EXIT_CODE, errors
    first, second, third, fourth = slurm.nodes
    steps = {
        options["job-name"]: options
        for step in slurm.lines("step")
        if (options := dict(word.removeprefix("--").partition("=")[::2] for word in step.split()))
    }
    assert steps["coordinator"]["nodelist"] == first
    assert steps["learner"]["nodelist"] == f"{first},{second}" and steps["learner"]["gpus-per-node"] == "8"
    assert steps["generator"]["nodelist"] == steps["reward"]["nodelist"] == f"{third},{fourth}"
    assert (steps["generator"]["ntasks"], steps["generator"]["gpus-per-task"]) == ("16", "1")
    started = {line.split()[0]: line.split()[1:] for line in slurm.lines("start")}
    certificates = tmp_path / "runs" / "slurm-17" / "certificates"
    for name, node in (("learner", first), ("generator", third), ("reward", third)):
        command = started[f"services.{name}"]
        assert f"--tls-dir={certificates / name}" in command, command
        assert any(word.startswith(f"--listen={node}:") for word in command), command
    assert f"--rdzv-endpoint={first}:29400" in started["services.learner"]
    (run,) = slurm.lines("shoal")
    assert f"--tls-dir {certificates / 'operator'} run start --watch" in run
    assert "--set launch.num_learner_ranks=16" in run and run.endswith("my.toml --set run.num_steps=3")
    ends = slurm.lines("end")
    assert ends[0] == "services.coordinator", ends
    assert sorted(ends[1:]) == ["services.generator", "services.learner", "services.reward"]


def test_what_is_killed_comes_back_and_a_job_whose_time_is_over_ends_everything(tmp_path: Path) -> None:
    slurm = ScriptedSlurm(tmp_path, 1)
    job = slurm.start("nodes-1.sbatch", run_lasts=True)
    slurm.wait_for(job, "shoal")
    for name in ("services.learner", "coordinator"):
        (first,) = slurm.wait_for(job, f"pid {name}")
        os.kill(int(first), signal.SIGKILL)
        assert slurm.wait_for(job, f"pid {name}", 2)[1] != first
    learners = slurm.lines("start services.learner")
    assert len(learners) == 2 and learners[0] == learners[1], f"the second command differs: {learners}"
    # So that it serves, and ends as one that was not killed.
    python = [str(tmp_path / "bin" / "python"), "-m", "shoal.rpc.healthcheck", f"{slurm.nodes[0]}:50050"]
    credentials = ["--tls-dir", str(tmp_path / "runs" / "slurm-17" / "certificates" / "coordinator")]
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run([*python, *credentials], env=slurm.environment(), capture_output=True).returncode:
        assert time.monotonic() < deadline, "the coordinator does not serve again"
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 143, errors
    assert "exit code 137; restart 1 of 5 " in errors
    first, *others = slurm.lines("end")[1:]  # Before them is the end of the one that was killed.
    assert first == "services.coordinator" and sorted(others) == [
        "services.generator", "services.learner", "services.reward",
    ]  # fmt: skip


def test_a_job_ends_with_the_name_of_a_step_whose_commands_have_all_ended(tmp_path: Path) -> None:
    slurm = ScriptedSlurm(tmp_path, 1)
    job = slurm.start("nodes-1.sbatch", run_lasts=True)
    slurm.wait_for(job, "shoal")
    (learner,) = slurm.wait_for(job, "pid services.learner")
    os.kill(int(learner), signal.SIGTERM)  # It ends without an error, as nobody told keep.sh.
    _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 1 and "run.sh: " in errors and " learner " in errors, errors


def test_a_command_that_keeps_failing_is_given_up_after_growing_pauses(tmp_path: Path) -> None:
    sleep = tmp_path / "sleep"
    sleep.write_text('#!/bin/sh\necho "$1" >>"$PAUSES"\n')
    sleep.chmod(0o755)
    pauses = tmp_path / "pauses"
    done = subprocess.run(
        [SLURM / "keep.sh", "sh", "-c", "exit 3"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PAUSES": str(pauses)},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 3 and pauses.read_text().split() == ["1", "2", "4", "8", "16"]
    assert "exit code 3 after 5 restarts" in done.stderr and ": sh -c exit 3" in done.stderr


@pytest.mark.parametrize("path", sorted(SLURM.glob("*.sbatch")), ids=lambda path: path.stem)
def test_slurm_warns_a_job_early_enough_for_its_checkpoint(path: Path) -> None:
    (warning,) = [line for line in path.read_text().splitlines() if "--signal" in line]
    grace_s = int((SLURM / "run.sh").read_text().partition("--grace-s ")[2].split()[0])
    assert int(warning.partition("@")[2]) >= grace_s + 60
