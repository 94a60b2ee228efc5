"""A sandbox with a shell and its own folder, from outside. The sandbox and its folder end with this process."""

import asyncio
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.reward.process.descendants import children
from services.reward.sandbox.bubblewrap import CODE, DEVICES, SandboxLost, SandboxUnavailable, reason_of, sandboxed
from services.reward.sandbox.limits import ShellLimits, rlimits

FOLDER = "/testbed"
_START_TIMEOUT_S, _LATE_S = 30.0, 30.0
_WATCH_S = 0.25
_NOBODY = 65534
_MAX_JOB_BYTES = 4 << 20
_MAX_COMMAND_BYTES = 100 << 10
_MIB = 1 << 20


@dataclass(frozen=True)
class Said:
    """The result of a command."""

    output: str
    """The output of both streams, without the middle if it is longer than the limit."""
    code: int | None
    """Exit status; None if the command was killed at the time limit."""
    num_restored: int = 0
    """Number of kept files that were restored before a check."""


class OverLimit(Exception):
    """A command exceeded a limit, so the sandbox was ended. The message names the limit."""


class Shell:
    """A sandbox that runs one command at a time. Belongs to one event loop."""

    def __init__(self, limits: ShellLimits) -> None:
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._over = ""

    async def start(self) -> None:
        """Starts the sandbox. Raises `SandboxUnavailable`."""
        limits = self._limits
        settings = {
            "code": CODE,
            "folder": FOLDER,
            "limits": rlimits(
                memory_mib=limits.memory_mib,
                timeout_s=limits.timeout_s,
                files_mib=limits.disk_mib,
                num_open_files=1024,
                num_processes=limits.num_processes,
            ),
            "output_bytes": limits.output_limit_kib << 10,
            "max_job_bytes": _MAX_JOB_BYTES,
            "files_bytes": limits.disk_mib * _MIB,
            "devices": DEVICES,
        }
        folders = {"/tmp": limits.disk_mib, FOLDER: limits.disk_mib}
        # The kernel does not enforce the limits of root's processes.
        user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        python = _python_for_nobody() if user else ""
        command = sandboxed("shell.py", settings, folders, python)
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", **user
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._answer()
        except (SandboxLost, TimeoutError) as error:
            assert self._process.stderr is not None
            self._kill()
            output = await self._process.stderr.read()
            late = f"no answer within {_START_TIMEOUT_S:g} s; " if isinstance(error, TimeoutError) else ""
            raise SandboxUnavailable(f"bubblewrap does not start a sandbox: {late}{reason_of(output)}") from None

    async def run(self, command: str) -> Said:
        """Runs a command in bash, with the folder and the variables that the previous command left. Raises `ValueError`
        for a command that is too long or has a null character, `OverLimit`, and `SandboxLost`."""
        return await self._asked({"command": _as_given(command)})

    async def keep(self, paths: Iterable[str]) -> None:
        """Remembers the state of files for `check`. Paths begin at the folder. Raises the errors of `run`."""
        await self._asked({"keep": list(paths)})

    async def check(self, command: str) -> Said:
        """Runs a command in bash apart from earlier commands: kept files are restored, /tmp is empty, and the shell has
        neither folder nor variables of another command. Raises the errors of `run`."""
        return await self._asked({"check": _as_given(command)})

    async def edit(self, request: dict[str, Any]) -> Said:
        """Shows or changes a file: {"command", "path", ...} (inside/editor.py). Raises the errors of `run`."""
        return await self._asked({"edit": request})

    async def close(self) -> None:
        """Ends all processes in the sandbox, and removes its folder."""
        if self._process is not None:
            self._kill()
            await self._process.wait()

    async def _asked(self, job: dict[str, Any]) -> Said:
        assert self._process is not None and self._process.stdin is not None, "start first"
        body = json.dumps({**job, "timeout_s": self._limits.timeout_s}, separators=(",", ":")).encode("ascii")
        if len(body) > _MAX_JOB_BYTES:
            raise ValueError("a file may have 1 MiB")
        watch = asyncio.create_task(self._watch(self._process.pid))
        try:
            async with asyncio.timeout(self._limits.timeout_s + _LATE_S):
                self._process.stdin.write(len(body).to_bytes(4, "little") + body)
                with contextlib.suppress(ConnectionError):
                    await self._process.stdin.drain()
                answer = await self._answer()
        except (SandboxLost, TimeoutError) as error:
            self._kill()
            if self._over:
                raise OverLimit(self._over) from None
            raise SandboxLost(str(error) or "the sandbox did not answer") from None
        finally:
            watch.cancel()
        return Said(answer["output"], answer["code"], answer["num_restored"])

    async def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            length = int.from_bytes(await self._process.stdout.readexactly(4), "little")
            if length > _MAX_JOB_BYTES:
                raise SandboxLost("the sandbox gave an answer that is too long")
            answer: dict[str, Any] = json.loads(await self._process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            raise SandboxLost("the sandbox has ended") from None
        return answer

    async def _watch(self, pid: int) -> None:
        """Ends the sandbox if its processes together take too much memory. The kernel limits only single processes."""
        limit_mib = self._limits.memory_mib
        while True:
            await asyncio.sleep(_WATCH_S)
            if _takes_more(pid, limit_mib * _MIB):
                self._over = f"its processes took more than {limit_mib} MiB of memory together"
                self._kill()
                return

    def _kill(self) -> None:
        # The kernel ends the namespace, and all processes in it, with its first process.
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def _as_given(command: str) -> str:
    if "\0" in command or len(command.encode("utf-8", "surrogatepass")) > _MAX_COMMAND_BYTES:
        raise ValueError("a command may have 100 KiB, and no null characters")
    return command.encode("utf-8", "replace").decode()


def _takes_more(pid: int, limit_bytes: int) -> bool:
    """Returns whether the descendants of a sandbox's first process together take more memory than a limit."""
    processes = [child for first in children(pid) for child in children(first)]
    for process in processes:  # The list grows meanwhile.
        processes += children(process)
    # Shared memory should count only once, but finding that out takes longer.
    return sum(map(_resident, processes)) > limit_bytes and sum(map(_proportional, processes)) > limit_bytes


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # The process has ended.
        return 0


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return _resident(pid)
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


@functools.cache
def _python_for_nobody() -> str:
    """Returns an interpreter that any user may start: this one may be in root's home. Raises `SandboxUnavailable`."""
    for python in map(os.path.realpath, (sys.executable, "/usr/bin/python3")):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = [python, "-I", "-S", "-c", "import ctypes, json, select, tempfile; select.poll"]
            subprocess.run(words, check=True, user=_NOBODY, group=_NOBODY, extra_groups=[], env={}, cwd="/",
                           timeout=_START_TIMEOUT_S, capture_output=True)  # fmt: skip
            return python
    raise SandboxUnavailable(
        "the service runs as root, whose processes the kernel does not limit, and found no Python that another user "
        "can start for the shell: run the service as another user, or apt-get install python3"
    )
