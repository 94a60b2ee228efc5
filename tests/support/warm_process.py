"""Programs that run in forks of a process that has imported what they need, which takes seconds of a core.

A program is a module whose `main` runs in a fork, with the arguments in `sys.argv`. What imports is `warm` of a module.
All processes of a test session share the process of that module: it begins with the first program, and ends with the
session.

Usage: python -m tests.support.warm_process LISTENER SESSION_PID MODULE
"""

import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from shoal.worker.parent import die_with_parent
from tests.support.waiting import block_until

MAX_BYTES = 1 << 17
"""Length of a request, most of which is the environment."""
_IMPORTING_S = 300.0
"""Longest time for the imports, on a busy machine."""


class WarmProgram:
    """A program in a fork, with a part of subprocess.Popen. It is killed with the process that started it."""

    def __init__(
        self,
        warm: str,
        program: str,
        *arguments: str,
        environment: Mapping[str, str],
        output: Any = None,
        errors: Any = None,
    ) -> None:
        """Runs `main` of the module `program` in a fork of the process of the module `warm`.

        `output` and `errors` are files, by default those of this process, as for Popen.
        """
        request = {"program": [program, *arguments], "environment": dict(environment), "folder": os.getcwd()}
        self._connection = _connected(warm, environment)
        files = [number if file is None else file.fileno() for number, file in enumerate((output, errors), 1)]
        socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        self._connection.settimeout(_IMPORTING_S)
        told = self._connection.recv(100)
        assert told, f"the process of {warm} has ended"
        self.pid = int(told)
        self._connection.settimeout(None)
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Returns the exit code, or minus the number of the signal that ended the program."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0.0)
            self.returncode = int(self._connection.recv(100))
            self._connection.close()
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@functools.cache
def _session_pid() -> int:
    """The process of pytest, which is the parent of this process if several run tests."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


_servers: list[subprocess.Popen[bytes]] = []


def _connected(module: str, environment: Mapping[str, str]) -> socket.socket:
    """Connects to the process of a module, and begins that process if it is the first of the session."""
    name = f"\0shoal-tests-{_session_pid()}-{module}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, suppress(OSError):
        listener.bind(name)  # Fails if the process has begun.
        listener.listen(100)
        command = [sys.executable, "-m", "tests.support.warm_process", str(listener.fileno())]
        _servers.append(
            subprocess.Popen(
                [*command, str(_session_pid()), module],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
            )
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Another process of the session may have bound the name, and not listen yet.
    block_until(lambda: connection.connect_ex(name) == 0, f"the process of {module} listens")
    return connection


def main() -> None:
    listener, session = socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(int(sys.argv[2]))
    server_pid, before = os.getpid(), dict(os.environ)
    importlib.import_module(sys.argv[3]).warm()
    gc.freeze()  # Otherwise each collection in a fork would go through all that was imported.
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        owners = {connection.fileno(): pid for pid, connection in running.values()}
        ready, _, _ = select.select([session, listener, *running, *owners], [], [])
        if session in ready:
            return  # The kernel ends the forks.
        for file in ready:
            if file is listener:
                connection, _ = listener.accept()
                message, files, _, _ = socket.recv_fds(connection, MAX_BYTES, 2)
                if (pid := os.fork()) == 0:
                    die_with_parent(parent_pid=server_pid)
                    _run(json.loads(message), list(files), added)
                for each in files:
                    os.close(each)
                connection.send(str(pid).encode())
                running[os.pidfd_open(pid)] = (pid, connection)
            elif file in running:
                pid, connection = running.pop(file)
                os.close(file)
                with suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                connection.close()
            elif file in owners:
                with suppress(ProcessLookupError):
                    os.kill(owners[file], signal.SIGKILL)


def _run(request: dict[str, Any], files: list[int], added: dict[str, str]) -> None:
    """Becomes the process of a program, and ends it."""
    exit_code = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        os.closerange(3, 1024)
        os.environ.clear()
        os.environ.update(added | request["environment"])
        os.chdir(request["folder"])
        tempfile.tempdir = None
        random.seed()
        sys.argv = request["program"]
        exit_code = importlib.import_module(sys.argv[0]).main() or 0
    except SystemExit as ended:
        exit_code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    main()
