"""A worker that cannot take a run over begins again: the same program, in the same process.

What an engine or a process group leaves behind in a process (memory of a device, threads that hang, sockets) is given
back by the kernel alone, and at once, when the process runs another program. The pid stays, so that neither the
supervisor nor the process that started the worker has to know.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import psutil

from shoal.errors import Unavailable

_log = logging.getLogger(__name__)

STARTING_OVER = "STARTING_OVER"
"""Reason of the error by which a worker says that it begins again and will register as another one."""

_RETRY_AFTER_S = 15.0
"""What a caller is told: calls in flight have 10 s to end, and the program takes seconds to start."""
_AT_MOST_S = 60.0
"""After so long the process begins again whatever still runs in it. An orderly end takes 20 s at most, and a few more
where learner ranks have to be killed."""


@dataclass(frozen=True)
class Program:
    """How this process was started."""

    executable: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> "Program":
        """To be asked before anything else in the process: it takes down how that was started."""
        _reap_earlier_children()
        return cls(sys.executable, tuple(sys.orig_argv[1:]), dict(os.environ))

    def start_again(self) -> NoReturn:
        """Replaces everything in this process. Descriptors but standard input, output and error are closed.

        Raises OSError when the interpreter is no longer there.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # One that was started just now has not tied itself to this process yet, and would never notice that this is
        # another program's by then.
        for child in multiprocessing.active_children():
            child.kill()
        # Python closes its own descriptors this way, not every library does: a port would stay taken.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if descriptor > 2:
                    os.set_inheritable(descriptor, False)
        os.execve(self.executable, [self.executable, *self.arguments], dict(self.environment))


class Renewal:
    """Whether this process is to begin again once it has ended in the way that SIGTERM has."""

    def __init__(
        self,
        program: Program,
        *,
        exit_code: int | None = None,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """`program` is what begins again. With an `exit_code` the process ends with that instead, where a supervisor
        starts several processes again together.

        `end` begins the orderly end of the process.
        """
        self.is_due = False
        self._program = program
        self._exit_code = exit_code
        self._end = end

    def begin(self, because: str) -> Unavailable:
        """Has the process end and begin again; the answer to whoever is the cause. A repeat changes nothing."""
        if not self.is_due:
            self.is_due = True
            _log.info("starting over", extra={"because": because})
            last = threading.Timer(_AT_MOST_S, self._force)
            last.daemon = True
            last.start()
            self._end()
        return Unavailable(
            f"{because}: it starts over, and registers again in some seconds as another worker",
            reason=STARTING_OVER,
            retry_after_s=_RETRY_AFTER_S,
        )

    def finish(self, exit_code: int) -> int:
        """The last call of a process that has ended everything else: begins again, or returns the exit code."""
        if not self.is_due:
            return exit_code
        if self._exit_code is not None:
            return self._exit_code
        self._program.start_again()

    def _force(self) -> None:
        _log.critical("something does not end; starting over without it", extra={"after_s": _AT_MOST_S})
        if self._exit_code is not None:
            os._exit(self._exit_code)
        self._program.start_again()


def _reap_earlier_children() -> None:
    """Takes leave of the processes that the program started which ran in this process before.

    They end with it, some only as it is replaced; until their parent asks how they ended, they stay as zombies.
    """
    for child in psutil.Process().children():
        threading.Thread(target=_wait_for, args=(child.pid,), daemon=True).start()


def _wait_for(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
