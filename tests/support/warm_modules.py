"""Starts of `python -m MODULE` and of `shoal` as forks of a process that has imported what they need.

A start costs 0.05 s of CPU time instead of a second. A fork has the command line, environment, folder, files, session,
group and parent of a real start, and exits as a real start does. The forks of NESTING fork their children as well.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest

from shoal.models.no_torch import hide_torch

PYTHON = sys.executable
SHOAL = str(Path(PYTHON).with_name("shoal"))
CHILD = "services.coordinator.launcher.child"
MODULES = (
    "services.coordinator",
    CHILD,
    "services.reward",
    "services.reward.environments.offline",
    "services.reward.offline",
    "services.reward.pool.worker",
    "shoal.rpc.healthcheck",
    "tests.support.scripted_train",
    "tests.support.scripted_train_workers",
    "tests.support.worker_process",
)
IMPORTED_LATE = (
    "encodings.idna",
    "langdetect",
    "math_verify",
    "punkt",
    "services.coordinator.cli.run",
    "services.coordinator.cli.train_session",
    "services.coordinator.reporting.page.page",
    "services.reward.service",
    "shoal.rpc.auth.authority",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.tokenization_llama",
)
"""What MODULES import when they need it."""
NESTING = (
    "services.reward",
    "services.reward.environments.offline",
    "services.reward.offline",
    "tests.support.scripted_train",
)
TEMPLATE = "template of forks"
"""The command line of the child of one of NESTING that forks its other children."""

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_real_start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_SIGNATURE = inspect.signature(_real_start)


class Template:
    """The process that has imported MODULES, as its parent sees it. It ends when the connection does."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._python = _python_variables(os.environ)

    @classmethod
    def start(cls) -> "Template":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [PYTHON, "-m", __name__, str(theirs.fileno()), " " * 4000]
        with theirs:
            cls.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert ours.recv(1), "the process that imports the modules has ended"
        return cls(ours)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Has `subprocess` start forks."""

        def start(*arguments: Any) -> None:
            given = _SIGNATURE.bind(*arguments).arguments
            if self._can_start(given):
                self._start(given)
            else:
                _real_start(*arguments)

        with mock.patch.object(subprocess.Popen, "_execute_child", start):
            yield

    def _can_start(self, given: Mapping[str, Any]) -> bool:
        unusual = any(given[name] for name in ("preexec_fn", "pass_fds", "shell", "executable"))
        has_folder = given["cwd"] is None or Path(os.fsdecode(given["cwd"])).is_dir()
        python = _python_variables(os.environ if given["env"] is None else given["env"])
        return not unusual and has_folder and _is_known(given["args"]) and python == self._python

    def _start(self, given: Mapping[str, Any]) -> None:
        popen = given["self"]
        environment = os.environ if given["env"] is None else given["env"]
        request = {
            "command": [os.fsdecode(word) for word in given["args"]],
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            "folder": os.fsdecode(given["cwd"] or os.getcwd()),
            "session": given["start_new_session"],
            "group": given["process_group"],
            "ignored": [
                int(number) for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) == signal.SIG_IGN
            ],
        }
        files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        files = [number if file == -1 else file for number, file in enumerate(files)]
        with self._lock, _adopting_orphans():
            socket.send_fds(self._connection, [json.dumps(request).encode()], files)
            popen.pid = int(self._connection.recv(20))
        popen._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*(given[end] for end in ends))


def _is_known(command: Sequence[Any]) -> bool:
    words = [os.fsdecode(word) for word in command[:3]] if not isinstance(command, (str, bytes)) else []
    return words[:1] == [SHOAL] or (words[:2] == [PYTHON, "-m"] and words[2] in MODULES)


def _python_variables(environment: Mapping[Any, Any]) -> dict[str, str]:
    found = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return {name: value for name, value in found.items() if name.startswith("PYTHON")}


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of its orphans: the template's fork of a fork."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _next_fork(connection: socket.socket) -> list[str]:
    """Returns in each fork, with its command; in the template never."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            os._exit(0)
        until_adopted, held = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() != 0:
                os._exit(0)
            os.close(held)
            os.read(until_adopted, 1)
            os.close(until_adopted)
            return _become(json.loads(message), files, connection)
        os.waitpid(middle, 0)
        for file in (*files, until_adopted, held):
            os.close(file)


def _become(request: Mapping[str, Any], files: Sequence[int], connection: socket.socket) -> list[str]:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0] = os.getcwd()
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if request["session"]:
        os.setsid()
    elif request["group"] != -1:
        os.setpgid(0, request["group"])
    _show(request["command"])
    with connection:
        connection.send(str(os.getpid()).encode())
    return list(request["command"])


def _show(command: Sequence[str]) -> None:
    """Makes /proc show this command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = "".join(f"{word}\0" for word in command).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _serve(connection: socket.socket) -> None:
    """Serves as a template, whose forks run their commands here."""
    command = _next_fork(connection)
    if command[1:3] == ["-m", CHILD]:
        sys.argv = command[2:]
        with mock.patch.object(os, "execv", _note_command):
            try:
                importlib.import_module(CHILD).main()
            except _Executes as executes:
                command = executes.command
    if command[0] == PYTHON and command[2] in NESTING:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            _show([TEMPLATE])
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            return _serve(theirs)
        theirs.close()
        with Template(ours).in_use():
            return _run(command)
    _run(command)


class _Executes(BaseException):
    def __init__(self, command: list[str]) -> None:
        self.command = command


def _note_command(path: str, command: list[str]) -> None:
    if not _is_known(command):
        os.execve(path, command, os.environ)
    _show(command)
    raise _Executes(command)


def _run(command: list[str]) -> NoReturn:
    """Runs the command and ends the process, without the finalization, which would copy the template's memory."""
    sys.orig_argv[:] = command
    code: object = 0
    try:
        if command[0] == PYTHON:
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except Exception:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    for name in MODULES:
        package = importlib.util.find_spec(name).submodule_search_locations is not None
        importlib.import_module(f"{name}.__main__" if package else name)
        del sys.modules[f"{name}.__main__" if package else name]  # Else runpy would warn of it.
    hide_torch()
    logging.disable()  # transformers warns that there is no torch.
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    logging.disable(logging.NOTSET)
    del sys.modules["torch"]
    gc.freeze()
    connection.send(b"1")
    _serve(connection)


@functools.cache
def _template() -> Template:
    return Template.start()


@pytest.fixture(autouse=True, scope="module")
def warm_modules() -> Iterator[None]:
    with _template().in_use():
        yield


if __name__ == "__main__":
    main()
