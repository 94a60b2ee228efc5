"""Processes that are started, restarted and ended: real ones, that do little."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from services.coordinator.launcher import supervisor as supervisor_module
from services.coordinator.launcher.plan import ProcessPlan
from services.coordinator.launcher.process import best_line
from services.coordinator.launcher.supervisor import ProcessDied, Supervisor

PATIENCE_S = 60.0


def _plan(name: str, kind: str, code: str) -> ProcessPlan:
    return ProcessPlan(name, kind, (sys.executable, "-c", code), {})


# Starts a grandchild in a session of its own, says its pid, and sleeps; SIGTERM ends it only if it is polite.
SLEEPER = """
import signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={aside})
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(grandchild.pid, flush=True)
time.sleep(600)
"""


async def _first_line(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.splitlines()[0]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{path} stayed empty for {PATIENCE_S} s")


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("aside", [False, True])
async def test_the_end_takes_deaf_processes_and_their_children_along(tmp_path: Path, aside: bool) -> None:
    supervisor = Supervisor(tmp_path, print)
    child = supervisor.start(_plan("sleeper", "generator", SLEEPER.format(aside=aside, deaf=True)))
    grandchild = int(await _first_line(tmp_path / "sleeper.log"))
    await supervisor.end(grace_s=0.3)
    assert child.exit_status() == -signal.SIGKILL
    assert _is_gone(grandchild), f"{grandchild} outlived its parent"


async def test_polite_processes_are_not_killed(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(1, flush=True)
time.sleep(600)
"""
    supervisor = Supervisor(tmp_path, print)
    child = supervisor.start(_plan("polite", "reward", code))
    await _first_line(tmp_path / "polite.log")
    await supervisor.end()
    assert child.describe_exit() == "exit code 7"


async def test_a_generator_that_dies_is_started_again_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.05)
    said: list[str] = []
    supervisor = Supervisor(tmp_path, said.append)
    code = f"""
import pathlib, sys, time
starts = pathlib.Path({str(tmp_path / "starts")!r})
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) < 3:
    sys.exit("RuntimeError: the engine is dead")
pathlib.Path({str(tmp_path / "up")!r}).write_text("up\\n")
time.sleep(600)
"""
    supervisor.start(_plan("generator-0", "generator", code))
    watching = asyncio.create_task(supervisor.watch())
    try:
        await _first_line(tmp_path / "up")
        assert not watching.done()
    finally:
        watching.cancel()
        supervisor.kill()
    assert len((tmp_path / "starts").read_text()) == 3
    deaths = [text for text in said if "died" in text]
    assert len(deaths) == 2 and "exit code 1; RuntimeError: the engine is dead" in deaths[0], said


@pytest.mark.parametrize(("kind", "exit_code"), [("learner", 1), ("generator", 3)])
async def test_a_death_that_the_run_cannot_survive_is_told_with_the_last_words(
    tmp_path: Path, kind: str, exit_code: int
) -> None:
    supervisor = Supervisor(tmp_path, print)
    supervisor.start(_plan(kind, kind, f"import sys; print('ValueError: no such thing'); sys.exit({exit_code})"))
    with pytest.raises(ProcessDied) as caught:
        await asyncio.wait_for(supervisor.watch(), PATIENCE_S)
    supervisor.kill()
    assert f"the {kind} process ended: exit code {exit_code}" in caught.value.message
    assert "its last words: ValueError: no such thing" in caught.value.message
    assert str(tmp_path / f"{kind}.log") in caught.value.message


async def test_a_kind_lives_on_while_one_of_it_does(tmp_path: Path) -> None:
    said: list[str] = []
    told = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    supervisor = Supervisor(tmp_path, say)
    supervisor.start(_plan("reward-0", "reward", "import sys; sys.exit(3)"))
    supervisor.start(_plan("reward-1", "reward", "import time; time.sleep(600)"))
    watching = asyncio.create_task(supervisor.watch())
    try:
        await asyncio.wait_for(told.wait(), PATIENCE_S)
        assert not watching.done()
        assert "it is not started again, the others go on without it" in said[0]
    finally:
        watching.cancel()
        supervisor.kill()


def test_kill_dash_nine_of_the_starter_ends_what_it_started(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from services.coordinator.launcher.plan import ProcessPlan
from services.coordinator.launcher.supervisor import Supervisor
sleeper = (sys.executable, "-c", "print(1, flush=True); import time; time.sleep(600)")
child = Supervisor(Path({str(tmp_path)!r}), print).start(ProcessPlan("sleeper", "learner", sleeper, {{}}))
print(child.pid, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout:
        child = int(starter.stdout.readline())
        asyncio.run(_first_line(tmp_path / "sleeper.log"))
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
    deadline = time.monotonic() + PATIENCE_S
    while not _is_gone(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _is_gone(child), f"{child} outlived its parent"


def test_the_best_line_of_a_log_is_the_last_that_tells_of_an_error() -> None:
    assert best_line(['{"level": "INFO", "event": "up"}', "ValueError: bad", '{"level": "INFO", "event": "bye"}']) == (
        "ValueError: bad"
    )
    record = '{"level": "ERROR", "event": "the engine died", "exception": "Traceback\\n  x\\nOSError: gone"}'
    assert best_line(["RuntimeError: earlier", record, "bye"]) == "the engine died: OSError: gone"
    assert best_line(["(EngineCore pid=1) ERROR 11-21 failed", "leaked 1 object"]) == (
        "(EngineCore pid=1) ERROR 11-21 failed"
    )
    assert best_line(["hello", "bye"]) == "bye"
    assert best_line([]) == ""
