"""Hostile programs in the reward service's pool: each ends by its deadline, and leaves nothing."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from services.reward.pool import VerifierPool
from services.reward.sandbox import run
from services.reward.sandbox.bubblewrap import Sandbox
from services.reward.verifiers import code
from shoal.rollout import ScoreOutcome

SECRET = "shoal-secret-3f29"
TIMEOUT_S, TOTAL_S = 2.0, 9.0
OPTIONS = {
    "code": {"timeout_s": TIMEOUT_S, "total_timeout_s": TOTAL_S},
    "code_stdio": {"timeout_s": TIMEOUT_S, "total_timeout_s": TOTAL_S},
}


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VerifierPool]:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    monkeypatch.setenv("SHOAL_SECRET", SECRET)
    pool = VerifierPool(num_processes=1, timeout_s=60.0, options=OPTIONS)
    await pool.start()
    yield pool
    seen = processes_of(pool)
    await pool.close()
    gone, alive = psutil.wait_procs(seen, timeout=10)
    assert not alive, f"left behind: {alive}; gone: {len(gone)}"


def processes_of(pool: VerifierPool) -> list[psutil.Process]:
    """The pool's and all that they started."""
    tops = [psutil.Process(pid) for pid in pool.pids]
    return [*tops, *(child for top in tops for child in top.children(recursive=True))]


async def until_quiet(pool: VerifierPool) -> list[str]:
    """Waits until there is no more than a pool's process, bubblewrap and the first process in the sandbox."""
    async with asyncio.timeout(10):
        names = [process.name() for process in processes_of(pool)]
        while len(names) > 3:
            await asyncio.sleep(0.05)
            names = [process.name() for process in processes_of(pool)]
    return names


async def test_tests_that_all_hang_cost_no_more_than_the_time_for_all_of_them(pool: VerifierPool) -> None:
    started = time.monotonic()
    program = "def f(x):\n    while x: pass\n    return x"
    score = await pool.judge("code", program, ["assert f(0) == 0", *["f(1)"] * 100])
    took_s = time.monotonic() - started
    assert score.outcome is ScoreOutcome.SCORED
    assert score.value == pytest.approx(1 / 101)
    assert took_s < TOTAL_S + 2.0, f"took {took_s:.1f} s"


async def test_while_one_process_is_held_up_the_other_goes_on() -> None:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    pool = VerifierPool(num_processes=2, timeout_s=60.0, options={"code": {"timeout_s": 8.0, "total_timeout_s": 9.0}})
    await pool.start()
    held_up = asyncio.create_task(pool.judge("code", "while True: pass", ["f()"]))
    await asyncio.sleep(0)
    scores = await asyncio.gather(*(pool.judge("code", "def f(): return 1", ["assert f() == 1"]) for _ in range(20)))
    assert [score.value for score in scores] == [1.0] * 20
    assert not held_up.done(), "twenty honest programs took longer than the one that hangs"
    assert (await held_up).outcome is ScoreOutcome.SCORED
    await pool.close()


async def test_a_sandbox_that_is_killed_costs_a_retry_and_no_reward(pool: VerifierPool) -> None:
    await pool.judge("code", "def f(): return 1", ["assert f() == 1"])
    slow = "import time\ndef f():\n    time.sleep(1)\n    return 1"
    judging = asyncio.create_task(pool.judge("code", slow, ["assert f() == 1"]))
    await asyncio.sleep(0.4)
    [sandbox] = psutil.Process(pool.pids[0]).children()
    sandbox.kill()
    score = await judging
    assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), score


async def test_a_pool_process_that_is_killed_takes_its_sandbox_with_it(pool: VerifierPool) -> None:
    program = "import time\ndef f():\n    time.sleep(1)\n    return 1"
    judging = asyncio.create_task(pool.judge("code", program, ["assert f() == 1"]))
    async with asyncio.timeout(30):
        seen = processes_of(pool)
        while len(seen) < 4:
            await asyncio.sleep(0.02)
            seen = processes_of(pool)
    seen[0].kill()
    gone, alive = psutil.wait_procs(seen, timeout=10)
    assert not alive, f"left behind: {alive}; gone: {len(gone)}"
    score = await judging
    assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), score


def test_a_sandbox_is_kept_until_a_program_leaves_something_in_it() -> None:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    limits = run.Limits(timeout_s=20.0)

    def sandbox_after(program: str) -> int:
        run.run_tests(program, ["f()"], kind=run.FUNCTIONS, limits=limits, total_timeout_s=60.0)
        return run._kept[limits].pid if limits in run._kept else 0

    clean = "def f(): pass"
    first = sandbox_after(clean)
    assert sandbox_after(clean) == first
    assert sandbox_after("def f(): open('/tmp/x', 'w')") == 0
    assert not psutil.pid_exists(first)
    assert sandbox_after(clean) != first
    run.close()


def test_the_command_says_what_holds_or_what_does_not() -> None:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    asked = [sys.executable, "-m", "services.reward.sandbox"]
    assert subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0
    poor = {**os.environ, "PATH": "/nowhere"}
    refused = subprocess.run(asked, capture_output=True, timeout=60, check=False, env=poor, text=True)
    assert refused.returncode == 1
    assert "apt-get install bubblewrap" in refused.stdout


def test_a_sandbox_runs_as_a_user_without_rights_too(tmp_path: Path) -> None:
    """The namespaces need no root; the interpreter has to be where that user may read it."""
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    if os.geteuid() != 0:
        pytest.skip("the other tests have shown it")
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("there is no interpreter that every user may run")
    # The file is opened here, where it can be, and read there.
    sources = Path(__file__).parents[3] / "services"
    target = tmp_path / "services"
    subprocess.run(["cp", "-r", str(sources), str(target)], check=True)
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder) != "/tmp" and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    asked = subprocess.run(
        ["/usr/bin/python3", "-m", "services.reward.sandbox"],
        user=65534, group=65534, extra_groups=[], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_a_sandbox_that_is_closed_is_gone_with_everything_in_it() -> None:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")
    sandbox = Sandbox(run.Limits())
    seen = [psutil.Process(sandbox.pid), *psutil.Process(sandbox.pid).children(recursive=True)]
    sandbox.close()
    _, alive = psutil.wait_procs(seen, timeout=10)
    assert len(seen) == 2
    assert not alive
