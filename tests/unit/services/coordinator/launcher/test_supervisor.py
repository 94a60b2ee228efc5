"""The supervisor starts, restarts, and ends real processes that do little."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.coordinator.launcher import supervisor as supervisor_module
from services.coordinator.launcher.plan import ProcessPlan
from services.coordinator.launcher.supervisor import ProcessDied, Supervisor
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.wordings import has_all


def _plan(name: str, kind: str, code: str, *, may_restart: bool = True) -> ProcessPlan:
    return ProcessPlan(name, kind, (sys.executable, "-c", code), {}, may_restart=may_restart)


# Starts a grandchild, in a separate session if `aside`, prints its pid, and sleeps. Ignores SIGTERM if `deaf`.
SLEEPER = """
import signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={aside})
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(grandchild.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, reports: list[str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, reports.append)
    yield supervisor
    supervisor.kill()


async def _first_line(path: Path) -> str:
    await eventually(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} has a line")
    return path.read_text().splitlines()[0]


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("aside", [False, True])
async def test_the_end_kills_deaf_processes_and_their_children(
    supervisor: Supervisor, tmp_path: Path, aside: bool
) -> None:
    child = supervisor.start(_plan("sleeper", "generator", SLEEPER.format(aside=aside, deaf=True)))
    grandchild = int(await _first_line(tmp_path / "sleeper.log"))
    await supervisor.end(grace_s=0.3)
    assert child.exit_status() == -signal.SIGKILL
    assert _is_gone(grandchild), f"{grandchild} outlived its parent"


async def test_polite_processes_are_not_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(1, flush=True)
time.sleep(600)
"""
    child = supervisor.start(_plan("polite", "reward", code))
    await _first_line(tmp_path / "polite.log")
    await supervisor.end()
    assert child.describe_exit() == "exit code 7"


@pytest.mark.parametrize(("kind", "exit_code"), [("coordinator", 1), ("generator", 3)])
async def test_a_death_that_the_run_cannot_survive_is_reported_with_the_last_line_of_the_log(
    supervisor: Supervisor, tmp_path: Path, kind: str, exit_code: int
) -> None:
    code = f"import sys; print('ValueError: no such thing'); sys.exit({exit_code})"
    supervisor.start(_plan(kind, kind, code, may_restart=kind != "coordinator"))
    with pytest.raises(ProcessDied) as caught:
        await asyncio.wait_for(supervisor.watch(), PATIENCE_S)
    named = (f"the {kind} ", f"exit code {exit_code}", "ValueError: no such thing", str(tmp_path / f"{kind}.log"))
    assert has_all(caught.value.message, *named), caught.value


async def test_a_new_step_lets_a_process_restart_as_often_as_at_first(
    supervisor: Supervisor, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(supervisor_module, "POLL_S", 0.01)
    monkeypatch.setattr(supervisor_module, "MAX_RESTARTS", 1)
    supervisor.start(_plan("learner", "learner", "import time; time.sleep(600)"))
    watching = asyncio.create_task(supervisor.watch())

    async def kill() -> None:
        count = len(reports)
        (child,) = (process.child for process in supervisor._processes.values())
        os.kill(child.pid, signal.SIGKILL)
        await eventually(lambda: watching.done() or len(reports) == count + 2, "the death is handled")

    try:
        for _ in range(2):
            await kill()
            supervisor.forgive({"learner"})
        supervisor.forgive({"generator"})
        await kill()
        assert not watching.done()
        await kill()
        with pytest.raises(ProcessDied):
            await watching
    finally:
        watching.cancel()


async def test_a_kind_of_process_survives_while_one_of_it_does(supervisor: Supervisor, reports: list[str]) -> None:
    supervisor.start(_plan("reward-0", "reward", "import sys; sys.exit(3)"))
    supervisor.start(_plan("reward-1", "reward", "import time; time.sleep(600)"))
    watching = asyncio.create_task(supervisor.watch())
    try:
        await eventually(lambda: reports, "the death is reported")
        assert not watching.done()
        assert "reward-0" in reports[0]
    finally:
        watching.cancel()


# Serves as a worker does, and writes its address to its log.
SERVER = """
import asyncio
from shoal.rpc.server import RpcServer
async def serve():
    server = RpcServer(listen="127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{server.port}", flush=True)
    await asyncio.sleep(600)
asyncio.run(serve())
"""


async def test_a_worker_that_hangs_after_its_lease_is_killed_and_restarted_and_one_that_answers_is_not(
    supervisor: Supervisor, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    hangs, _ = (supervisor.start(_plan(name, "learner", SERVER)) for name in ("learner", "other"))
    addresses = [await _first_line(tmp_path / f"{name}.log") for name in ("learner", "other")]
    watching = asyncio.create_task(supervisor.watch())
    try:
        for address in addresses:
            await supervisor.end_hanging(address)
        await supervisor.end_hanging("127.0.0.1:1")
        assert not reports, f"all answer: {reports}"
        monkeypatch.setattr(supervisor_module, "ANSWER_S", 0.5)
        os.kill(hangs.pid, signal.SIGSTOP)
        await supervisor.end_hanging(addresses[0])
        await eventually(lambda: len(reports) >= 3, "the process is restarted")
    finally:
        watching.cancel()
    assert "learner hangs" in reports[0]
    assert "learner died (killed by SIGKILL" in reports[1] and "learner is restarted" in reports[2], reports
    assert hangs.exit_status() == -signal.SIGKILL


async def test_a_process_that_nobody_keeps_a_lease_of_is_asked_again_and_again_and_killed_when_it_hangs(
    supervisor: Supervisor, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(supervisor_module, "ASK_EVERY_S", 0.05)
    asked: list[bool] = []
    answers = supervisor_module._answers

    async def asking(address: str) -> bool:
        asked.append(await answers(address))
        return asked[-1]

    monkeypatch.setattr(supervisor_module, "_answers", asking)
    hangs = supervisor.start(_plan("coordinator", "coordinator", SERVER))
    address = await _first_line(tmp_path / "coordinator.log")
    working = [asyncio.create_task(work) for work in (supervisor.watch(), supervisor.keep_answering(address))]
    try:
        await eventually(lambda: len(asked) >= 2, "it is asked")
        assert all(asked) and not reports, f"it answers: {asked}, {reports}"
        monkeypatch.setattr(supervisor_module, "ANSWER_S", 0.5)
        os.kill(hangs.pid, signal.SIGSTOP)
        await eventually(lambda: len(reports) >= 3, "the process is restarted")
    finally:
        for task in working:
            task.cancel()
    assert "coordinator hangs" in reports[0] and "coordinator is restarted" in reports[2], reports
    assert asked.count(False) >= supervisor_module.NUM_ASKED, f"it was given up after {asked}"
