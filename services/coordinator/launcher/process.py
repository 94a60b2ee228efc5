"""One process that was started here, with its group, its log and its last words."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from services.coordinator.launcher.plan import ProcessPlan

_TAIL_BYTES = 64 << 10
_PR_SET_CHILD_SUBREAPER = 36
# The kernel takes its time to free the memory of a large process.
_KILL_TIMEOUT_S = 10.0


class ChildProcess:
    """A process in a session and group of its own, so that all that it starts can be signalled with it."""

    def __init__(self, plan: ProcessPlan, log_file: Path) -> None:
        """Starts it. Standard output and error go to the end of `log_file`."""
        self.plan = plan
        self.log_file = log_file
        self.started_at = time.monotonic()
        command = [sys.executable, "-m", "services.coordinator.launcher.child", str(os.getpid()), *plan.command]
        with log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **plan.environment},
                start_new_session=True,
            )
        self._seen: dict[int, psutil.Process] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it lives; else its exit code, negative for the signal that killed it."""
        return self._process.poll()

    def look_for_descendants(self) -> None:
        """Remembers what it has started, so that `kill` finds also those that left its group."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                self._seen[process.pid] = process

    def terminate(self) -> None:
        """Asks the process to end. Its own children are its own to end."""
        if self.exit_status() is None:
            self.look_for_descendants()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills what is left of the process, its group and its descendants, and waits until they are gone."""
        if self.exit_status() is None:
            self.look_for_descendants()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in self._seen.values():
            with contextlib.suppress(psutil.Error):
                process.kill()  # Knows by its start time whether the pid is still the same process.
        self._process.wait()
        psutil.wait_procs(self._seen.values(), timeout=_KILL_TIMEOUT_S)

    def describe_exit(self) -> str:
        """How it ended: "exit code 1", "killed by SIGKILL"."""
        status = self.exit_status()
        if status is None:
            return "still running"
        if status >= 0:
            return f"exit code {status}"
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"

    def last_words(self) -> str:
        """The line of its log since it was started that best says why it ended; empty when it said nothing."""
        with self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        return best_line([line for line in lines if line])


def adopt_orphans() -> None:
    """Makes this process the parent of all that its descendants leave behind, so that it can end them. Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kills every process that descends from this one, and waits until they are gone."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(descendants, timeout=_KILL_TIMEOUT_S)


def best_line(lines: list[str]) -> str:
    """The last line that tells of an error, else the last line."""
    for line in reversed(lines):
        if record := _record(line):
            if record.get("level") in ("ERROR", "CRITICAL"):
                details = record.get("error") or str(record.get("exception", "")).strip().rpartition("\n")[2]
                return f"{record.get('event', '')}: {details}".strip(": ")
        elif _is_error(line):
            return line
    return lines[-1] if lines else ""


def _record(line: str) -> dict[str, object] | None:
    """A line of a JSON log."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _is_error(line: str) -> bool:
    """Whether a line looks like the end of a traceback, or a log line of level ERROR."""
    name = line.partition(":")[0]
    return (name.endswith(("Error", "Exception")) and " " not in name) or " ERROR " in line
