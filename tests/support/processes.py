"""Programs of a test that run as processes of their own."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence

from tests.support.repository import ROOT

ONE_THREAD = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
"""The environment of ranks that share a machine's cores."""


def run_together(commands: Iterable[Sequence[str]], *, timeout_s: float = 800.0) -> None:
    """Runs commands side by side to their ends, each with one thread; fails with the log of one that failed."""
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, env=ONE_THREAD, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, log))
        for process, log in started:
            exit_code = process.wait(timeout_s)
            log.seek(0)
            assert exit_code == 0, log.read()[-4000:]
