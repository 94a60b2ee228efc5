"""The sandbox from outside: the command line and the process of bubblewrap (github.com/containers/bubblewrap), which
gives a process its own namespaces. `inside` has the code that runs in them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.reward.sandbox.inside import seccomp
from services.reward.sandbox.inside.channel import Channel, Closed, Message, Unreadable
from services.reward.sandbox.limits import SandboxLimits, rlimits

_INSIDE = Path(__file__).parent / "inside"
_MAY_MOUNT = "CAP_SYS_ADMIN"
"""The capability of a sandbox's first process inside the sandbox. The processes that it starts give it up."""
CODE = "/shoal"
"""The folder of the code of `inside` in a sandbox."""
_START_TIMEOUT_S = 30.0
_MAX_VERDICT_BYTES = 1 << 20
_MIB = 1 << 20
_EXAMINER_BYTES = 1 << 30
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    # The seed is fixed, so that the order of sets, and with it the verdict, is always the same.
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
}
# If memory runs out, the kernel should kill the sandbox first.
_EXPENDABLE = ["/bin/sh", "-c", 'echo 1000 >/proc/self/oom_score_adj 2>/dev/null; exec "$@"', "sh"]


class SandboxUnavailable(Exception):
    """No sandbox can be started here. The message has the reason and the remedy."""


class SandboxLost(Exception):
    """The sandbox ended during a job. This proves nothing about the program."""


def command(limits: SandboxLimits) -> list[str]:
    """Returns the sandbox's command line. Raises `SandboxUnavailable` if it cannot work here."""
    settings = {
        "code": CODE,
        "limits": rlimits(
            memory_mib=limits.memory_mib,
            timeout_s=limits.timeout_s,
            files_mib=limits.files_mib,
            num_open_files=limits.num_open_files,
            num_processes=limits.num_threads,
        ),
        "start_timeout_s": _START_TIMEOUT_S,
        "examiner_bytes": _EXAMINER_BYTES,
        "files_bytes": limits.files_mib * _MIB,
        "devices": DEVICES,
    }
    return sandboxed("main.py", settings, {})


def sandboxed(main: str, settings: Message, folders: Mapping[str, int], python: str = "") -> list[str]:
    """Returns the command line of a sandbox whose first process is a file of `inside`, with `settings` as its argument.

    `folders` are empty folders in memory, with their sizes in MiB. Only they can be written. `python` is the
    interpreter, by default this process's. Raises `SandboxUnavailable` if it cannot work here.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable("bubblewrap is not installed: apt-get install bubblewrap")
    if not seccomp.is_supported():
        raise SandboxUnavailable(f"the sandbox works only on x86_64 and aarch64 (this machine: {os.uname().machine})")
    prefix = str(Path(python).parents[1]) if python else os.path.realpath(sys.base_prefix)
    python = python or os.path.realpath(sys.executable)
    return [
        *_EXPENDABLE, bwrap,
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--as-pid-1", "--uid", "65534", "--gid", "65534",
        "--cap-drop", "ALL", "--cap-add", _MAY_MOUNT, "--hostname", "sandbox",
        "--clearenv", *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *_system_folders(),
        *([] if Path(prefix).is_relative_to("/usr") else ["--ro-bind", prefix, prefix]),
        "--ro-bind", str(_INSIDE), f"{CODE}/services/reward/sandbox/inside",
        *(word for name in DEVICES for word in ("--dev-bind", name, name)),
        "--dir", "/tmp",
        *(
            word
            for folder, mib in folders.items()
            for word in ("--perms", "0700", "--size", str(mib * _MIB), "--tmpfs", folder)
        ),
        "--remount-ro", "/", "--chdir", "/tmp", "--",
        # Use no packages of the user or the site, use nothing from the working folder, and write no compiled files.
        python, "-s", "-S", "-P", "-B", f"{CODE}/services/reward/sandbox/inside/{main}", json.dumps(settings),
    ]  # fmt: skip


def _system_folders() -> list[str]:
    """Returns the arguments that bind /usr, and the folders next to it that link into it or contain libraries."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            words += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            words += ["--ro-bind", name, name]
    # The loader's index of libraries outside the default folders.
    return [*words, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]


class Sandbox:
    """A sandbox with a warm interpreter. The sandbox dies with this process, even on `kill -9`."""

    def __init__(self, limits: SandboxLimits) -> None:
        """Starts the sandbox. Raises `SandboxUnavailable` if that fails."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command(limits), stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env={})
        assert self._process.stdin is not None and self._process.stdout is not None
        self._channel = Channel(
            self._process.stdout.fileno(), self._process.stdin.fileno(), max_bytes=_MAX_VERDICT_BYTES
        )
        try:
            self._channel.receive(deadline=time.monotonic() + _START_TIMEOUT_S)
        except (Closed, Unreadable, TimeoutError):
            raise SandboxUnavailable(f"bubblewrap does not start a sandbox: {self._stderr_line()}") from None

    @property
    def pid(self) -> int:
        """Id of the outer process of the sandbox."""
        return self._process.pid

    def send(self, job: Message, *, deadline: float) -> None:
        """Sends a job. Raises `SandboxLost` or `TimeoutError`."""
        try:
            self._channel.send(job, deadline=deadline)
        except Closed as error:
            raise SandboxLost(str(error)) from None

    def receive(self, *, deadline: float) -> Message:
        """Receives the next verdict. Raises `SandboxLost` or `TimeoutError`."""
        try:
            return self._channel.receive(deadline=deadline)
        except (Closed, Unreadable) as error:
            raise SandboxLost(str(error)) from None

    def close(self) -> None:
        """Kills everything in the sandbox and waits until it is gone."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()

    def _stderr_line(self) -> str:
        """Ends the sandbox. Returns its last line on standard error, and the cure if it is known."""
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        output: Any = self._process.stderr.read() or b""
        self.close()
        return reason_of(output)


def reason_of(output: bytes) -> str:
    """Returns the last line of bubblewrap's standard error, and the cure if it is known."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    reason = lines[-1] if lines else "no message on standard error"
    if b"namespace" in output or b"uid map" in output or b"Operation not permitted" in output:
        reason += (
            ". The kernel or the container refuses user namespaces: see docs/sandbox.md (sysctl "
            "kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns, the container's "
            "seccomp profile)"
        )
    return reason
