"""The first process of a sandbox with a shell: `python shell.py SETTINGS`. It runs one command at a time.

No process outlives its command: as the first of its namespace, this process can kill all others. Files carry the
shell's folder and variables from one command to the next. A check gets neither, and an empty /tmp.
"""

import ctypes
import itertools
import json
import os
import resource
import select
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_PR_SET_DUMPABLE = 4
_REAP_S = 1.0
_CHUNK_BYTES = 1 << 16
_ALL = 0o700
_BASH = ["/bin/bash", "--noprofile", "--norc", "-c"]
_SHELL = """\
trap 'declare -p >/tmp/.shell/variables; pwd >/tmp/.shell/folder' EXIT
. /tmp/.shell/variables 2>/dev/null
cd "$(cat /tmp/.shell/folder 2>/dev/null)" 2>/dev/null || cd "$FOLDER"
eval "$1"
"""


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    # No process may trace this process.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.path.insert(0, settings["code"])
    from services.reward.sandbox.inside import namespaces
    from services.reward.sandbox.inside.channel import Channel, Closed

    for device in settings["devices"]:
        namespaces.make_read_only(device)
    channel, kept = Channel(0, 1, max_bytes=settings["max_job_bytes"]), KeptFiles()
    channel.send({"event": "ready"})
    while True:
        try:
            channel.send({"num_restored": 0, **_answered(channel.receive(), kept, settings)})
        except Closed:
            return


def _answered(job: dict[str, Any], kept: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Runs a job, which has "command", "edit", "check" or "keep", and "timeout_s". Returns "output", "code" (None if it
    was killed at the time limit), and for a check "num_restored"."""
    try:
        if "keep" in job:
            kept.keep(os.path.normpath(os.path.join(settings["folder"], path)) for path in job["keep"])
            return {"output": "", "code": 0}
        if "check" in job:
            return _checked(job, kept, settings)
        os.makedirs("/tmp/.shell", exist_ok=True)
        if "edit" in job:
            editor = f"{settings['code']}/services/reward/sandbox/inside/editor.py"
            words, given = [sys.executable, "-s", "-S", "-P", "-B", editor], json.dumps(job["edit"]).encode()
        else:
            words, given = [*_BASH, _SHELL, "bash", job["command"]], b""
        return _given(words, given, job, settings)
    except OSError as error:  # The disk is full.
        return {"output": f"{error.strerror}\n", "code": 1}


def _checked(job: dict[str, Any], kept: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Runs a command apart from earlier commands: with an empty /tmp, a new shell, and restored kept files."""
    from services.reward.sandbox.inside.namespaces import mount_folder

    mount_folder(settings["files_bytes"])
    num_restored = kept.restore()
    return {**_given([*_BASH, job["check"]], b"", job, settings), "num_restored": num_restored}


def _given(words: list[str], given: bytes, job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Runs a program with an input."""
    with tempfile.TemporaryFile(dir="/tmp") as stdin:
        stdin.write(given)
        stdin.seek(0)
        return _run(words, stdin.fileno(), time.monotonic() + job["timeout_s"], settings)


def _run(words: list[str], stdin: int, deadline: float, settings: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _become(words, (stdin, writing, writing), settings)
    os.close(writing)
    os.set_blocking(reading, False)
    output, status = _Output(settings["output_bytes"]), None
    poll, watch = select.poll(), os.pidfd_open(pid)
    poll.register(reading, select.POLLIN)
    poll.register(watch, select.POLLIN)
    while status is None and (left_s := deadline - time.monotonic()) > 0:
        events = dict(poll.poll(min(left_s, _REAP_S) * 1000))
        if reading in events and not output.read(reading):
            poll.unregister(reading)
        status = _reaped(pid, wait=False)
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    late = _reaped(pid, wait=True)
    while output.read(reading):
        pass
    os.close(watch)
    os.close(reading)
    code = status if status is not None else late if time.monotonic() < deadline else None
    return {"output": output.text(), "code": code}


def _become(words: list[str], descriptors: tuple[int, ...], settings: dict[str, Any]) -> None:
    """Turns a forked process into a program without further rights."""
    from services.reward.sandbox.inside import namespaces, seccomp

    try:
        namespaces.drop_capabilities()
        seccomp.confine(may_start_processes=True)
        os.setsid()
        for place, descriptor in enumerate([os.dup(descriptor) for descriptor in descriptors]):
            os.dup2(descriptor, place)
        os.closerange(3, 256)
        for name, limit in settings["limits"].items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (most, most))
        path = f"{os.environ['PATH']}:{os.path.dirname(sys.executable)}"
        os.chdir(settings["folder"])
        os.execve(words[0], words, {**os.environ, "PATH": path, "FOLDER": settings["folder"]})
    except BaseException as error:
        os.write(1, f"{words[0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(126)


def _reaped(pid: int, *, wait: bool) -> int | None:
    """Reaps the ended processes, or with `wait` all processes. Returns the exit status of `pid`."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            return found
        if not ended:
            return found
        if ended == pid:
            found = os.waitstatus_to_exitcode(status)


class _Output:
    """The beginning and the end of a command's output."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head, self._tail, self._num_bytes = bytearray(), bytearray(), 0

    def read(self, descriptor: int) -> bool:
        """Reads the available output. Returns False at the end."""
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._num_bytes += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._half :]
        return bool(data)

    def text(self) -> str:
        num_omitted = self._num_bytes - len(self._head) - len(self._tail)
        between = f"\n[{num_omitted} bytes are left out here]\n".encode() if num_omitted else b""
        return (self._head + between + self._tail).decode("utf-8", "replace")


@dataclass(frozen=True)
class _Kept:
    data: bytes
    mode: int


class KeptFiles:
    """Copies of files, which it restores."""

    def __init__(self) -> None:
        self._files: dict[str, _Kept] = {}

    def keep(self, paths: Iterable[str]) -> None:
        """Remembers the files of `paths` that exist."""
        for path in paths:
            if (found := _read(path)) is not None:
                self._files[path] = found

    def restore(self) -> int:
        """Restores the changed files, and returns their number. Raises `OSError`.

        Works whatever the modes are, and even if links, folders or pipes have replaced a file or its folders.
        """
        changed = [path for path, kept in self._files.items() if _read(path) != kept]
        for path in changed:
            _make_folder(os.path.dirname(path))
            _put_away(path)
            kept = self._files[path]
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(kept.data)
                os.fchmod(descriptor, kept.mode)
        return len(changed)


def _read(path: str) -> _Kept | None:
    """Returns a file; None if there is no file at exactly this path."""
    try:
        if os.path.realpath(path) != path or not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _Kept(file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    except OSError:
        return None


def _make_folder(path: str) -> None:
    """Makes a writable folder. All folders on its path are real folders, not links."""
    parent = os.path.dirname(path)
    if parent != path:
        _make_folder(parent)
    if not os.path.isdir(path) or os.path.islink(path):
        _put_away(path)
        os.mkdir(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & _ALL != _ALL:
        os.chmod(path, mode | _ALL)


def _put_away(path: str) -> None:
    """Removes the file with this name. A folder is renamed instead, since removing its contents may take long."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    names = (f"{path}.replaced-{number}" for number in itertools.count(1))
    os.rename(path, next(name for name in names if not os.path.lexists(name)))


if __name__ == "__main__":
    main()
