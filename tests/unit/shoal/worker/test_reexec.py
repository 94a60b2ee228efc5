"""Restart of a process in which something does not end."""

import subprocess
import sys
from pathlib import Path

import psutil

from shoal.worker.reexec import RESTART_EXIT_CODE, Program, Reexec

STUCK = """
import os, subprocess, sys, threading
from pathlib import Path
from shoal.worker import reexec

mine = reexec.Reexec(reexec.Program.of_this_process(), end=lambda: None, exit_code=int(sys.argv[2]) or None)
been_here = Path(sys.argv[1])
if been_here.exists():
    print(os.getpid(), flush=True)
    sys.exit(mine.finish(3))
been_here.touch()
reexec.MAX_END_S = 0.1
print(os.getpid(), flush=True)
first, repeated = mine.begin("another run"), mine.begin("another run")
assert first.reason == repeated.reason == "STARTING_OVER" and mine.is_due
threading.Event().wait()
"""


def run(tmp_path: Path, exit_code: int) -> tuple[int, list[str]]:
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    command = [sys.executable, str(script), str(tmp_path / "been-here"), str(exit_code)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.split()


def test_a_canceled_restart_ends_the_process_with_its_exit_code() -> None:
    reexec = Reexec(Program(sys.executable, ("-c", "raise SystemExit(9)"), {}), end=lambda: None)
    reexec.begin("another run")
    reexec.cancel()
    assert reexec.finish(3) == 3 and not reexec.is_due


def test_a_restart_is_left_to_the_launcher_only_when_there_is_one() -> None:
    program = Program(sys.executable, (), {})
    for exit_code in (None, RESTART_EXIT_CODE):
        reexec = Reexec(program, exit_code=exit_code, end=lambda: None)
        assert not reexec.is_left_to_launcher
        reexec.begin("another run")
        assert reexec.is_left_to_launcher is (exit_code is not None)
        reexec.cancel()


def test_a_process_whose_main_thread_hangs_restarts_nevertheless(tmp_path: Path) -> None:
    code, pids = run(tmp_path, exit_code=0)
    assert code == 3 and len(pids) == 2 and pids[0] == pids[1], (code, pids)


def test_a_process_with_a_launcher_ends_with_the_exit_code_for_a_restart(tmp_path: Path) -> None:
    code, pids = run(tmp_path, exit_code=RESTART_EXIT_CODE)
    assert code == RESTART_EXIT_CODE and len(pids) == 1, (code, pids)


UNTIED = """
import multiprocessing, sys, time
from pathlib import Path
from shoal.worker.reexec import Program

if __name__ == "__main__":
    program, been_here = Program.of_this_process(), Path(sys.argv[1])
    if been_here.exists():
        print("again", flush=True)
        sys.stdin.read()
    else:
        been_here.touch()
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        child.start()
        print(child.pid, flush=True)
        sys.stdin.readline()
        program.execute()
"""


def test_a_child_that_has_only_just_started_does_not_survive_the_restart(tmp_path: Path) -> None:
    script = tmp_path / "untied.py"
    script.write_text(UNTIED)
    command = [sys.executable, str(script), str(tmp_path / "been-here")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "again\n"
        _, left = psutil.wait_procs([child], 60)
        process.stdin.close()
    for survivor in left:
        survivor.kill()
    assert not left, "the child of the former program is alive"
