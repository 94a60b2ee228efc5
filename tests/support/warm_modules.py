"""Modules that run in forks of a process that has imported them: 0.02 s of a start instead of 0.7 s.

A fork has the environment, folder, input and outputs of a real start, and exits as one does.
"""

import array
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from types import SimpleNamespace

MODULES = ("services.reward.offline", "services.reward.environments.offline")
"""Those that `shoal` runs once per command."""


class WarmModules:
    """The process that has imported MODULES. It begins with the first run and ends with `close`."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def as_subprocess(self) -> SimpleNamespace:
        """What stands for the module `subprocess` in code that runs one of MODULES."""
        return SimpleNamespace(run=self.run, PIPE=subprocess.PIPE, Popen=subprocess.Popen)

    def run(
        self, command: Sequence[str], *, input: str, stdout: int, text: bool, check: bool
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `python -m MODULE ARGUMENT...` as `subprocess.run` does."""
        executable, option, module, *arguments = command
        assert (executable, option, stdout, text, check) == (sys.executable, "-m", subprocess.PIPE, True, False), (
            command
        )
        assert module in MODULES, command
        connection = self._connected()
        request = {"module": module, "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as written:
            given.write(input)
            given.seek(0)
            socket.send_fds(connection, [json.dumps(request).encode()], [given.fileno(), written.fileno(), 2])
            exit_code = int(connection.recv(100))
            written.seek(0)
            return subprocess.CompletedProcess(command, exit_code, written.read())

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(60)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.support.warm_modules", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            theirs.close()
        return self._socket


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
        del sys.modules[name]  # Else runpy would warn of it.
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            _run(json.loads(message), files)
        for file in files:
            os.close(file)
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _run(request: dict[str, object], files: "list[int] | array.array[int]") -> None:
    """Becomes the process that runs a module, and ends it."""
    exit_code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        os.chdir(str(request["folder"]))
        sys.argv = [str(request["module"]), *request["arguments"]]  # type: ignore[misc]
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        exit_code = 0
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
