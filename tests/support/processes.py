"""Programs of a test that run as processes of their own."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.repository import ROOT
from tests.support.waiting import PATIENCE_S

ONE_THREAD = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
"""The environment of ranks that share a machine's cores."""


def run_together(commands: Iterable[Sequence[str]], *, timeout_s: float = 800.0) -> None:
    """Runs commands side by side to their ends, each with one thread; fails with the log of one that failed."""
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, env=ONE_THREAD, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, log))
        for process, log in started:
            exit_code = process.wait(timeout_s)
            log.seek(0)
            assert exit_code == 0, log.read()[-4000:]


class Ended(NamedTuple):
    code: int | None
    out: str
    err: str


async def ended(*command: str | Path, **environment: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=PIPE, stderr=PIPE, env=os.environ | environment
    )
    out, err = await process.communicate()
    return Ended(process.returncode, out.decode(), err.decode())


@contextlib.asynccontextmanager
async def running(*command: str | Path, **environment: str) -> AsyncIterator[Process]:
    """Runs a command until the end of the block, which asks it to end; `line_of` reads its output."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=PIPE, stderr=DEVNULL, env=os.environ | environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), PATIENCE_S)
        except TimeoutError:
            process.kill()
            raise


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode()


@contextlib.asynccontextmanager
async def serving_process(module: str, *options: str | Path, **environment: str) -> AsyncIterator[tuple[Process, str]]:
    """Runs a service on a free port until the end of the block; yields its process and its address.

    A worker finds no coordinator if the options name none.
    """
    nobody = () if module == "services.coordinator" or "--coordinator" in options else ("--coordinator", "127.0.0.1:1")
    command = (sys.executable, "-m", module, "--listen", "127.0.0.1:0", *nobody, *options)
    async with running(*command, **environment) as process:
        yield process, json.loads(await line_of(process))["address"]
