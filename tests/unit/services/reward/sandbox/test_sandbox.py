"""Tests of hostile programs in the reward service's pool: each ends at its deadline and leaves nothing behind."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from services.reward.pool.pool import VerifierPool
from services.reward.sandbox import run
from services.reward.sandbox.bubblewrap import Sandbox
from shoal.scores import ScoreOutcome
from tests.support.repository import ROOT

pytestmark = pytest.mark.usefixtures("sandbox")

TOTAL_S = 3.0
SLOW = "import time\ndef f():\n    time.sleep(1)\n    return 1"


@asynccontextmanager
async def running_pool(timeout_s: float, total_timeout_s: float) -> AsyncIterator[VerifierPool]:
    options = {"code": {"timeout_s": timeout_s, "total_timeout_s": total_timeout_s}}
    pool = VerifierPool(num_processes=1, timeout_s=60.0, options=options)
    await pool.start()
    yield pool
    seen = processes_of(pool)
    await pool.close()
    gone, alive = psutil.wait_procs(seen, timeout=60)
    assert not alive, f"left behind: {alive}; gone: {len(gone)}"


@pytest.fixture
async def patient_pool() -> AsyncIterator[VerifierPool]:
    """A pool for honest programs that sleep for a second."""
    async with running_pool(40.0, 50.0) as pool:
        yield pool


def processes_of(pool: VerifierPool) -> list[psutil.Process]:
    tops = [psutil.Process(pid) for pid in pool.pids]
    return [*tops, *(child for top in tops for child in top.children(recursive=True))]


async def test_a_hundred_hanging_tests_end_at_the_total_timeout() -> None:
    program = "def f(x):\n    while x: pass\n    return x"
    async with running_pool(0.5, TOTAL_S) as pool:
        started = time.monotonic()
        score = await pool.judge("code", program, ["assert f(0) == 0", *["f(1)"] * 100])
        duration_s = time.monotonic() - started
    assert score.outcome is ScoreOutcome.SCORED and score.value == pytest.approx(1 / 101)
    assert duration_s < TOTAL_S + 30.0, f"took {duration_s:.1f} s"


async def test_one_hanging_process_does_not_stop_the_other() -> None:
    patient = {"code": {"timeout_s": 100.0, "total_timeout_s": 110.0}}
    pool = VerifierPool(num_processes=2, timeout_s=120.0, options=patient)
    await pool.start()
    hanging = asyncio.create_task(pool.judge("code", "while True: pass", ["f()"]))
    await asyncio.sleep(0)
    scores = await asyncio.gather(*(pool.judge("code", "def f(): return 1", ["assert f() == 1"]) for _ in range(20)))
    assert [score.value for score in scores] == [1.0] * 20
    assert not hanging.done(), "twenty honest programs took longer than the one that hangs"
    await pool.close()
    assert (await hanging).outcome is ScoreOutcome.FAILED


async def test_a_killed_sandbox_costs_a_retry_and_no_reward(patient_pool: VerifierPool) -> None:
    await patient_pool.judge("code", "def f(): return 1", ["assert f() == 1"])
    judging = asyncio.create_task(patient_pool.judge("code", SLOW, ["assert f() == 1"]))
    await asyncio.sleep(0.4)
    [sandbox] = psutil.Process(patient_pool.pids[0]).children()
    sandbox.kill()
    score = await judging
    assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), score


async def test_the_sandbox_of_a_killed_pool_process_ends_with_it(patient_pool: VerifierPool) -> None:
    judging = asyncio.create_task(patient_pool.judge("code", SLOW, ["assert f() == 1"]))
    async with asyncio.timeout(30):
        seen = processes_of(patient_pool)
        while len(seen) < 4:
            await asyncio.sleep(0.02)
            seen = processes_of(patient_pool)
    seen[0].kill()
    gone, alive = psutil.wait_procs(seen, timeout=60)
    assert not alive, f"left behind: {alive}; gone: {len(gone)}"
    score = await judging
    assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), score


def test_a_sandbox_is_reused_whatever_a_program_leaves_in_it() -> None:
    limits = run.SandboxLimits(timeout_s=20.0)

    def sandbox_after(program: str) -> int:
        [result] = run.run_tests(program, ["f()"], kind=run.FUNCTIONS, limits=limits, total_timeout_s=60.0)
        assert result.passed, result.detail
        return run._kept[limits].pid

    first = sandbox_after("def f(): pass")
    assert sandbox_after("import os\ndef f(): open('/tmp/x', 'w'); os.chmod('/tmp', 0)") == first
    assert sandbox_after("import os\ndef f(): assert os.listdir('/tmp') == []") == first
    run.close()
    assert not psutil.pid_exists(first)


def test_the_command_reports_whether_the_sandbox_works_and_how_to_fix_it() -> None:
    command = [sys.executable, "-m", "services.reward.sandbox"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    without_bubblewrap = {**os.environ, "PATH": "/nowhere"}
    refused = subprocess.run(command, capture_output=True, timeout=60, check=False, env=without_bubblewrap, text=True)
    assert refused.returncode == 1
    assert "apt-get install bubblewrap" in refused.stdout


def test_a_sandbox_runs_as_an_unprivileged_user(tmp_path: Path) -> None:
    """Namespaces need no root, but the interpreter must be readable by that user."""
    if os.geteuid() != 0:
        pytest.skip("the other tests already run as an unprivileged user")
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no interpreter can be run by every user")
    # Copy the sources to where that user may read them.
    subprocess.run(["cp", "-r", str(ROOT / "services"), str(tmp_path / "services")], check=True)
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder) != "/tmp" and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    finished = subprocess.run(
        ["/usr/bin/python3", "-m", "services.reward.sandbox"],
        user=65534, group=65534, extra_groups=[], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_closing_a_sandbox_ends_every_process_in_it() -> None:
    sandbox = Sandbox(run.SandboxLimits())
    seen = [psutil.Process(sandbox.pid), *psutil.Process(sandbox.pid).children(recursive=True)]
    sandbox.close()
    _, alive = psutil.wait_procs(seen, timeout=60)
    assert len(seen) == 2 and not alive
