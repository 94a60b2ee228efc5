"""The first process of the sandbox: `python main.py SETTINGS`. It keeps the others, and reads neither program nor test.

For each job it forks an examiner from the warm interpreter. For the examiner it forks the processes in which the
program runs, each with its own namespace and empty folder. As the first process of its namespace it cannot be killed
from inside, and it can kill all other processes.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

JOBS_FD, VERDICTS_FD = 0, 1
_PR_SET_DUMPABLE = 4
# The examiner enforces each test's deadline. If it is this late, the examiner itself hangs.
_GRACE_S = 1.0
_PRELOADED = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    # No process may trace this process or its forks.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.path.insert(0, settings["code"])
    from services.reward.sandbox.inside import examiner, namespaces, seccomp, subject

    for name in _PRELOADED:
        importlib.import_module(name)
    sys.path.remove(settings["code"])
    seccomp.prepare()
    for device in settings["devices"]:
        namespaces.make_read_only(device)
    # The working folder of a process cannot be removed.
    os.chdir("/")
    gc.freeze()
    _say({"event": "ready"})
    poll = select.poll()
    poll.register(JOBS_FD, select.POLLIN)
    while poll.poll()[0][1] & select.POLLIN and (pending := _Job(settings, namespaces)):
        pending.run(examiner.main, subject.main)


class _Job:
    """The job of one program and its tests."""

    def __init__(self, settings: dict[str, Any], namespaces: Any) -> None:
        self._settings, self._namespaces = settings, namespaces
        self._subject_pid = 0
        self._deadline = time.monotonic() + settings["start_timeout_s"]

    def run(self, examine: Any, be_subject: Any) -> None:
        connection, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        examiner_pid = os.fork()
        if not examiner_pid:
            connection.close()
            self._in_child(lambda: _be_examiner(examine, other_end, self._settings))
        other_end.close()
        ended = self._serve(connection, be_subject)
        status = _reap(examiner_pid, 1.0)[0] if ended else None
        connection.close()
        _kill_all()
        if self._subject_pid:
            self._namespaces.unmount_folder()
        why = "finished" if status == 0 else "hung" if not ended else "died"
        _say({"event": "end", "why": why})

    def _serve(self, connection: socket.socket, be_subject: Any) -> bool:
        """Serves the examiner until it ends; returns False if it hangs."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000):
                return False
            try:
                command, _, argument = connection.recv(64).decode().partition(" ")
            except ConnectionError:
                return True
            if command == "test":
                self._deadline = time.monotonic() + float(argument) + _GRACE_S
            elif command == "start":
                self._start(connection, argument, be_subject)
            elif command == "end":
                status, cpu_s = self._end(float(argument))
                connection.send(f"{'none' if status is None else status} {cpu_s}".encode())
            else:
                return True

    def _start(self, connection: socket.socket, kind: str, be_subject: Any) -> None:
        """Forks a process for the program and sends its file descriptors to the examiner."""
        self._end(0.0)
        self._namespaces.mount_folder(self._settings["files_bytes"])
        ours, theirs = socket.socketpair()
        nothing = os.open(os.devnull, os.O_RDWR)
        give, take = [ours.fileno()], [nothing, nothing, nothing, theirs.fileno()]
        if kind == "program":
            stdin, to_program = os.pipe()
            from_program, stdout = os.pipe()
            give += [to_program, from_program]
            take[:2] = [stdin, stdout]
        self._subject_pid = self._namespaces.fork_apart()
        if not self._subject_pid:
            self._in_child(lambda: _be_subject(be_subject, kind, take, self._settings["limits"]))
        socket.send_fds(connection, [b"started"], give)
        for descriptor in {*give, *take}:
            os.close(descriptor)
        ours.detach()
        theirs.detach()

    def _end(self, patience_s: float) -> tuple[int | None, float]:
        """Ends the program's process, and removes its folder. Returns the result of `_reap`."""
        if not self._subject_pid:
            return None, 0.0
        ended = _reap(self._subject_pid, patience_s)
        self._subject_pid = 0
        self._namespaces.unmount_folder()
        return ended

    def _in_child(self, work: Any) -> None:
        """Runs `work` without rights and ends the process with the status that it returns, whatever happens."""
        status = 1
        try:
            self._namespaces.drop_capabilities()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            status = work()
        finally:
            os._exit(status)


def _be_examiner(examine: Any, keeper: socket.socket, settings: dict[str, Any]) -> int:
    jobs, verdicts = os.dup(JOBS_FD), os.dup(VERDICTS_FD)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = settings["examiner_bytes"] if hard == resource.RLIM_INFINITY else min(settings["examiner_bytes"], hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    examine(jobs, verdicts, keeper)
    return 0


def _be_subject(be_subject: Any, kind: str, descriptors: list[int], limits: dict[str, int]) -> int:
    # First move the descriptors away from the numbers that they will get.
    high = [os.dup2(descriptor, 100 + place, inheritable=False) for place, descriptor in enumerate(descriptors)]
    for place, descriptor in enumerate(high):
        os.dup2(descriptor, place)
    os.closerange(len(high), 100 + len(high))
    status: int = be_subject(kind, limits)
    return status


def _reap(pid: int, patience_s: float) -> tuple[int | None, float]:
    """Ends a child. Returns its exit status (None if it had to be killed) and its processor time in seconds."""
    poll = select.poll()
    watch = os.pidfd_open(pid)
    poll.register(watch, select.POLLIN)
    ended = bool(poll.poll(patience_s * 1000))
    os.close(watch)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status) if ended else None, used.ru_utime + used.ru_stime


def _kill_all() -> None:
    """Kills every other process of the namespace and waits until none is left."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _say(message: dict[str, Any]) -> None:
    """Sends one message, which is short enough for a single write."""
    body = json.dumps(message).encode()
    os.write(VERDICTS_FD, len(body).to_bytes(4, "little") + body)


if __name__ == "__main__":
    main()
