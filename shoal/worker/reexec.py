"""Restart of a worker's program, for a run that the process cannot take over.

An engine or a process group leaves device memory, hanging threads and sockets behind. The kernel frees all of these at
once when the process executes another program. So a worker that cannot take over a run answers `Configure` with
STARTING_OVER, ends as after SIGTERM, and restarts. Each kind of worker is restarted in its own way:

* A generator, and a learner that started its ranks itself (`shoal train`, compose): the process restarts itself. The
  process executes its own command line (`Program.execute`). The pid, a fixed port and the log file stay, so the
  supervisor of `shoal train`, Docker and Kubernetes see no exit and restart nothing.
* A learner under torchrun: torchrun restarts the learner. A rank cannot restart alone, so all ranks end with
  RESTART_EXIT_CODE, and the torchrun of each machine starts its ranks again, as often as its `--max-restarts` allows.
  If no restart is left, the learner refuses the run with OTHER_CONFIGURATION instead.
* A reward service never restarts this way: it replaces its verifiers within the process.

The restarted worker registers under another id, for which services/coordinator/workers/fleet.py waits.

A worker that fails ends with exit code 1. The supervisor of `shoal train` starts it again
(services/coordinator/launcher/supervisor.py). In a container the restart policy does so, and under torchrun, torchrun.
"""

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import psutil

from shoal.error_reasons import ErrorReason
from shoal.errors import Unavailable
from shoal.rpc.signals import RESTART_SIGNAL

_log = logging.getLogger(__name__)

RESTART_EXIT_CODE = 75
"""The exit code with which learner ranks make torchrun start them again: EX_TEMPFAIL of sysexits.h."""
_RETRY_AFTER_S = 15.0
"""The retry delay for the caller. Calls in flight have 10 s to end, and the program takes seconds to start."""
MAX_END_S = 60.0
"""The time after which the process restarts even if work still runs. An orderly end takes little more than 20 s."""


@dataclass(frozen=True)
class Program:
    """The command line and the environment of this process at its start."""

    executable: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> "Program":
        """Returns the program of this process. Call it first, since later code may change the environment."""
        _reap_earlier_children()
        return cls(sys.executable, tuple(sys.orig_argv[1:]), dict(os.environ))

    def execute(self) -> NoReturn:
        """Replaces this process by the program. Closes all descriptors but standard input, output and error.

        Raises OSError when the interpreter no longer exists.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # A child that has just started has not yet asked the kernel to end it with its parent. It would survive under
        # the new program, since the parent's pid stays.
        for child in multiprocessing.active_children():
            child.kill()
        # Python marks its own descriptors as not inheritable. Some libraries do not, and a port would stay taken.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if descriptor > 2:
                    os.set_inheritable(descriptor, False)
        os.execve(self.executable, [self.executable, *self.arguments], dict(self.environment))


class Reexec:
    """The restart of this process. A refusal begins it, and it finishes after the orderly end of the process."""

    def __init__(
        self,
        program: Program,
        *,
        exit_code: int | None = None,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), RESTART_SIGNAL),
    ) -> None:
        """The process ends by executing `program`, or with `exit_code`, upon which its launcher starts it again.

        `end` begins the orderly end of the process.
        """
        self._because = ""
        self._program = program
        self._exit_code = exit_code
        self._end = end

    @property
    def is_due(self) -> bool:
        """Whether the process is about to restart."""
        return bool(self._because)

    @property
    def is_left_to_launcher(self) -> bool:
        """Whether the process is about to end with the exit code that makes its launcher start it again."""
        return self.is_due and self._exit_code is not None

    def begin(self, because: str) -> Unavailable:
        """Begins the restart and returns the error to raise. A repeated call changes nothing, not even the reason."""
        if not self.is_due:
            self._because = because
            _log.info("restarting", extra={"because": because})
            last = threading.Timer(MAX_END_S, self._force)
            last.daemon = True
            last.start()
            self._end()
        return self.refusal()

    def refusal(self) -> Unavailable:
        """Returns the error that refuses a call because the process restarts."""
        return Unavailable(
            f"{self._because}: the worker restarts, and registers again within seconds as another worker",
            reason=ErrorReason.STARTING_OVER,
            retry_after_s=_RETRY_AFTER_S,
        )

    def cancel(self) -> None:
        """Cancels a restart that began after a signal had told the process to end for good."""
        self._because = ""

    def finish(self, exit_code: int) -> int:
        """Executes the program if a restart is due, else returns the exit code. Make this call last."""
        if not self.is_due:
            return exit_code
        if self._exit_code is not None:
            return self._exit_code
        self._program.execute()

    def _force(self) -> None:
        if not self.is_due:
            return
        _log.critical("restarting although some work has not ended", extra={"after_s": MAX_END_S})
        if self._exit_code is not None:
            os._exit(self._exit_code)
        self._program.execute()


def _reap_earlier_children() -> None:
    """Reaps the children of the program that ran in this process before.

    These children end at the latest when the program is replaced, and stay zombies until their parent waits.
    """
    for child in psutil.Process().children():
        threading.Thread(target=_wait_for, args=(child.pid,), daemon=True).start()


def _wait_for(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
