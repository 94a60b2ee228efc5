"""The children of a process, whichever of its threads has started them."""

import os
import subprocess
import sys

from services.reward.process.descendants import children

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
