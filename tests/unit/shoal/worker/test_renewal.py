"""A process that starts over although something in it does not end."""

import subprocess
import sys
from pathlib import Path

STUCK = """
import os, subprocess, sys, threading
from pathlib import Path
from shoal.worker import renewal

mine = renewal.Renewal(renewal.Program.of_this_process(), end=lambda: None, exit_code=int(sys.argv[2]) or None)
been_here = Path(sys.argv[1])
if been_here.exists():
    print(os.getpid(), flush=True)
    sys.exit(mine.finish(3))
been_here.touch()
renewal._AT_MOST_S = 0.1
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


def test_a_process_whose_main_thread_is_stuck_starts_over_all_the_same(tmp_path: Path) -> None:
    code, pids = run(tmp_path, exit_code=0)
    assert code == 3 and len(pids) == 2 and pids[0] == pids[1], (code, pids)


def test_a_process_that_others_start_again_ends_with_the_exit_code_that_asks_for_it(tmp_path: Path) -> None:
    code, pids = run(tmp_path, exit_code=75)
    assert code == 75 and len(pids) == 1, (code, pids)
