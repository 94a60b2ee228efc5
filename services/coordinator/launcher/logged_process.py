"""A child process with its process group and log, and the descendants that outlive the process."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from services.coordinator.launcher.plan import ProcessPlan

_TAIL_BYTES = 64 << 10
_PR_SET_CHILD_SUBREAPER = 36
# The kernel needs seconds to free the memory of a large process.
_KILL_TIMEOUT_S = 10.0


class LoggedProcess:
    """A process in a separate session and group, so that one signal also reaches every process that it starts."""

    def __init__(self, plan: ProcessPlan, log_file: Path) -> None:
        """Starts the process. Appends its standard output and error to `log_file`."""
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
        self._descendants: dict[int, psutil.Process] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """The exit code, or the negated number of the signal that killed the process; None while the process lives."""
        return self._process.poll()

    def listens_at(self, address: str) -> bool:
        """Returns whether the process itself listens at the port of an address of this machine."""
        port = int(address.rpartition(":")[2])
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.pid).net_connections("tcp")
            return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)
        return False

    def record_descendants(self) -> None:
        """Records the descendants of the process, so that `kill` also finds descendants that left the process group."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                self._descendants[process.pid] = process

    def terminate(self) -> None:
        """Sends SIGTERM only to the process itself, which then ends its children."""
        if self.exit_status() is None:
            self.record_descendants()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process, its group, and its descendants, and waits until all of them have ended."""
        if self.exit_status() is None:
            self.record_descendants()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in self._descendants.values():
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil checks by the start time that the pid is still the same process.
        self._process.wait()
        psutil.wait_procs(self._descendants.values(), timeout=_KILL_TIMEOUT_S)

    def describe_exit(self) -> str:
        """Describes how the process ended: "exit code 1", "killed by SIGKILL"."""
        status = self.exit_status()
        if status is None:
            return "still running"
        if status >= 0:
            return f"exit code {status}"
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"

    def last_log_line(self) -> str:
        """Returns the log line that best explains the end of the process; empty if it has logged nothing."""
        with self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        return best_line([line for line in lines if line])


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, so that they can be ended. Works only on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kills all descendants of this process, and waits until they have ended."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(descendants, timeout=_KILL_TIMEOUT_S)


def best_line(lines: list[str]) -> str:
    """Returns the last line that reports an error, or else the last line. Reduces a JSON log line to its message."""
    for line in reversed(lines):
        if record := _json_record(line):
            if record.get("level") in ("ERROR", "CRITICAL"):
                return _said(record)
        elif _is_error(line):
            return line
    last = lines[-1] if lines else ""
    record = _json_record(last)
    return f"its last log message is: {_said(record)}" if record else last


def _said(record: Mapping[str, object]) -> str:
    exception = str(record.get("exception", "")).strip().rpartition("\n")[2]
    details = record.get("error") or exception or record.get("message", "")
    return f"{record.get('event', '')}: {details}".strip(": ")


def _json_record(line: str) -> dict[str, object] | None:
    """Parses a line of a JSON log; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _is_error(line: str) -> bool:
    """Whether a line looks like the end of a traceback or a log line of level ERROR."""
    name = line.partition(":")[0]
    return (name.endswith(("Error", "Exception")) and " " not in name) or " ERROR " in line
