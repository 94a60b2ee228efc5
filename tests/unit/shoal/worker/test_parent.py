import os
import signal
import subprocess
import sys

BECOME_CHILD = "from shoal.worker.parent import die_with_parent; die_with_parent(parent_pid={pid}); print('alive')"


def run(pid):
    return subprocess.run(
        [sys.executable, "-c", BECOME_CHILD.format(pid=pid)], capture_output=True, text=True, timeout=60
    )


def test_a_child_of_a_living_parent_lives():
    assert run(os.getpid()).stdout == "alive\n"


def test_an_orphan_ends_at_once():
    ended = run(os.getpid() + 1)  # As if the parent had died and another process had adopted the child.
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")


def test_a_child_of_multiprocessing_knows_its_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, os, signal
from shoal.worker.parent import die_with_parent

def child(pipe):
    die_with_parent()
    pipe.send("alive")
    signal.pause()

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=child, args=(there,)).start()
    print(here.recv(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
""")
    # The child inherits the pipe of the output, so this returns when both processes have ended.
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "alive\n"), ended.stderr
