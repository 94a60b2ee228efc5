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
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/", "/usr", "/etc", "/root", "/home", str(Path(__file__).parent))
MARK = f"shoal-mark-{os.getpid()}"

TAKES_ALL_MEMORY = "def f():\n    return len(bytearray(10 << 30))"
ATTACKS: dict[str, tuple[str, str]] = {
    "an infinite loop": ("def f():\n    while True: pass", "f()"),
    "an infinite loop as it is loaded": ("while True: pass", "f()"),
    "a loop that catches everything": (
        "def f():\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        "f()",
    ),
    "a fork bomb": ("import os\ndef f():\n    while True: os.fork()", "f()"),
    "a daemon": ("import os\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass", "f()"),
    "a subprocess": ("import subprocess\ndef f(): subprocess.run(['/bin/sleep', '60'])", "f()"),
    "threads without end": (
        "import threading, time\ndef f():\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "f()",
    ),
    "ten gigabytes": (TAKES_ALL_MEMORY, "f()"),
    "memory bit by bit": ("def f():\n    x = []\n    while True: x.append(bytearray(1 << 20))", "f()"),
    "files that fill memory": (
        "def f():\n    for n in range(10 ** 6):\n        open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))",
        "f()",
    ),
    "memory by file descriptor": ("import os\ndef f():\n    os.write(os.memfd_create('x'), bytes(1 << 20))", "f()"),
    "a call over the network": (
        "import urllib.request\ndef f(): urllib.request.urlopen('http://127.0.0.1:80', timeout=60)",
        "f()",
    ),
    "a raw socket": ("import socket\ndef f(): socket.create_connection(('1.1.1.1', 53))", "f()"),
    "writing outside": (
        f"def f():\n    n = 0\n    for place in {PLACES[1:]!r}:\n"
        f"        try: open(place + '/{MARK}', 'w'); n += 1\n        except OSError: pass\n    return n",
        "assert f() > 0",
    ),
    "writing to the one writable place": (f"def f(): open('/tmp/{MARK}', 'w')", "f()\nassert False"),
    "reading the environment": (
        f"import os\ndef f(): return {SECRET[:6]!r} in str(dict(os.environ)) or len(os.environ) > 10",
        "assert f()",
    ),
    "reading what others do": ("import os\ndef f(): return os.listdir('/proc')", "f()"),
    "reading files of the service": (f"def f(): return open({__file__!r}).read()", "f()"),
    "a gigabyte of output": ("def f():\n    for _ in range(1024): print('x' * (1 << 20))\n    raise OSError", "f()"),
    "a catastrophic regular expression": (
        "import re\ndef f(): return re.match('(a+)+$', 'a' * 40 + 'b')",
        "f()",
    ),
    "a catastrophic regular expression in the test": (
        "def f(): return 'a' * 40 + 'b'",
        "import re\nassert re.match('(a+)+$', f())",
    ),
    "a value without end": ("import itertools\ndef f(): return itertools.count()", "list(f())"),
    "a huge value": ("def f(): return 'x' * (100 << 20)", "assert f() == 'y'"),
    "a value in a value in a value": (
        "def f():\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
        "assert f() == 1",
    ),
    "a value that contains itself": ("def f():\n    x = []\n    x.append(x)\n    return x", "assert f() == 1"),
    "a crash of the interpreter": ("import ctypes\ndef f(): ctypes.string_at(0)", "f()"),
    "not Unicode": ("\ud800\udfff = '\x00'", "f()"),
    "nothing": ("", "f()"),
    "a million characters": ("x = " + "1 + " * 250_000 + "1", "f()"),
    "a million characters of text": ("word " * 200_000, "f()"),
    "a million open brackets": ("[" * 1_000_000, "f()"),
    "closing what it was given": ("import os\nos.closerange(0, 100)\ndef f(): return 1", "assert f() == 1"),
    "a new namespace": (
        "import ctypes\ndef f():\n    if ctypes.CDLL(None).unshare(0x10000000): raise OSError",
        "f()",
    ),
}
PRINTING_ATTACKS = {
    "a gigabyte of output": "while True: print('x' * (1 << 20))",
    "output that never ends its line": "import sys\nwhile True: sys.stdout.write('x')",
    "an infinite loop": "while True: pass",
    "silence that holds its output open": "import time\nprint(1, flush=True)\ntime.sleep(60)",
    "closing its output and going on": "import os, time\nprint(1, flush=True)\nos.close(1)\ntime.sleep(60)",
    "waiting for input that does not come": "input(); input(); input()",
    "a fork bomb": "import os\nprint(1)\nwhile True: os.fork()",
    "ten gigabytes": "print(1)\nx = bytearray(10 << 30)",
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


async def test_each_attack_ends_by_its_deadline_scores_zero_and_leaves_nothing(pool: VerifierPool) -> None:
    await pool.judge("code", "def f(): return 1", ["assert f() == 1"])
    for name, (program, test) in ATTACKS.items():
        started = time.monotonic()
        score = await pool.judge("code", program, [test])
        took_s = time.monotonic() - started
        assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 0.0), f"{name}: {score}"
        assert took_s < TOTAL_S + 2.0, f"{name} took {took_s:.1f} s: {score.detail}"
        left = await until_quiet(pool)
        assert len(left) <= 3, f"{name} left {left}"
        after = await pool.judge("code", "def f(): return 1", ["assert f() == 1"])
        assert after.value == 1.0, f"after {name}: {after}"
    assert pool.num_restarts == 0
    marks = [place for place in PLACES if (Path(place) / MARK).exists()]
    assert not marks, f"written outside: {marks}"


async def test_each_attack_of_a_script_ends_by_its_deadline_and_scores_zero(pool: VerifierPool) -> None:
    for name, program in PRINTING_ATTACKS.items():
        started = time.monotonic()
        score = await pool.judge("code_stdio", program, [{"input": "", "output": "1"}])
        took_s = time.monotonic() - started
        assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 0.0), f"{name}: {score}"
        assert took_s < TOTAL_S + 2.0, f"{name} took {took_s:.1f} s: {score.detail}"
        await until_quiet(pool)
    assert pool.num_restarts == 0


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
