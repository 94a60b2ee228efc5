"""What a process has started is found, and ends with the service, also where the service is killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from services.reward.process.descendants import MARK_VARIABLE, Guard, children, descendants
from tests.support.repository import ROOT

PATIENCE_S = 60

# A service, whose environment's process starts one that leaves its group, and one that also starts others.
SERVICE = f"""
import os, subprocess, sys, time
from services.reward.process.descendants import GUARD
from shoal.worker.parent import die_with_parent
mark = GUARD.new_mark()
child = '''
import os, subprocess, sys, time
from shoal.worker.parent import die_with_parent
die_with_parent()
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sh", "-c", "while true; do sleep 600 & wait; done"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
'''
environment = os.environ | {{"{MARK_VARIABLE}": mark}}
process = subprocess.Popen([sys.executable, "-c", child], env=environment, stdout=subprocess.PIPE)
process.stdout.readline()
print(mark, flush=True)
{{end}}
"""


@pytest.mark.parametrize(
    ("end", "by"),
    [("time.sleep(600)", signal.SIGKILL), ("time.sleep(600)", signal.SIGTERM), ("process.kill()", None)],
    ids=["killed", "told-to-end", "ends-by-itself"],
)
def test_nothing_of_an_environment_outlives_its_service(end: str, by: signal.Signals | None) -> None:
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE.replace("{end}", end)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert service.stdout is not None
    mark = service.stdout.readline().strip()
    if by is not None:
        started = [psutil.Process(pid) for pid in descendants(mark)]
        assert len(started) >= 3, f"of the processes only {started} carry the mark"
        os.killpg(service.pid, by)
    service.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while left := descendants(mark):
        assert time.monotonic() < deadline, f"processes {left} have outlived the service"
        time.sleep(0.05)
    service.stdout.close()


def test_a_guard_that_was_killed_is_started_again_and_ends_what_both_guard() -> None:
    guard = Guard()
    first = guard.new_mark()
    assert guard._process is not None and guard._process.stdin is not None
    guard._process.kill()
    guard._process.wait(PATIENCE_S)
    guard._process.stdin.close()
    second = guard.new_mark()
    sleeping = [
        subprocess.Popen(["sleep", "600"], env=os.environ | {MARK_VARIABLE: mark}, start_new_session=True)
        for mark in (first, second)
    ]
    other = subprocess.Popen(["sleep", "600"], env=os.environ | {MARK_VARIABLE: "another"}, start_new_session=True)
    guard._process.stdin.close()  # As when this process ends.
    assert [process.wait(PATIENCE_S) for process in sleeping] == [-signal.SIGKILL] * 2
    assert guard._process.wait(PATIENCE_S) == 0
    assert other.poll() is None, "it ended a process of another service"
    other.kill()
    other.wait(PATIENCE_S)


_PROGRAM = """
import subprocess, sys, threading
started = [subprocess.Popen(["sleep", "600"])]
def start():
    started.append(subprocess.Popen(["sleep", "600"]))
    ready.set()
    over.wait()
ready, over = threading.Event(), threading.Event()
threading.Thread(target=start).start()
ready.wait()
print(*(each.pid for each in started), flush=True)
sys.stdin.read()
for each in started:
    each.kill()
    each.wait()
over.set()
"""


def test_the_children_of_all_threads_are_found_and_none_of_a_process_that_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        wanted = sorted(map(int, process.stdout.readline().split()))
        assert len(wanted) == 2 and sorted(children(process.pid)) == wanted
        assert process.pid in children(os.getpid())
    assert children(process.pid) == []
