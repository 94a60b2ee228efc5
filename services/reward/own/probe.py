"""`python -m services.reward.own.probe PARENT_PID`: loads a function in a process of its own, and says what it found.

Importing runs the code, which may hang, crash or take all memory: that must not happen to a process that scores.
Reads a `Code` as JSON from stdin, writes one JSON object to stdout.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass

from services.reward.frames import take_pipes
from services.reward.own.code import Code, Unusable
from services.reward.own.loading import load
from services.reward.pool_process import ENVIRONMENT
from services.reward.process_limits import limit_process

TIMEOUT_S = 120.0
"""Longest time for importing; the same that a process of the pool has."""


@dataclass(frozen=True)
class Probed:
    """A function that works, as far as can be told without calling it."""

    wants: frozenset[str]
    """What it takes."""
    description: str
    digest: str


async def probe(code: Code) -> Probed:
    """What loading the code comes to. Raises `Unusable`, also when that hangs or ends the process."""
    field = "file" if code.path else "entry_point"
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.reward.own.probe", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
            process_group=0,
        )
    except OSError as error:
        raise Unusable(field, f"{code.place} cannot be tried, since no process can be started: {error}") from None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, _ = await process.communicate(json.dumps(asdict(code)).encode())
    except TimeoutError:
        raise Unusable(field, f"{code.place} is not imported within {TIMEOUT_S:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # With what the import has started.
        await process.wait()
    try:
        answer = json.loads(said)
    except ValueError:
        raise Unusable(
            field, f"{code.place} ends the process that imports it (exit code {process.returncode})"
        ) from None
    if "error" in answer:
        raise Unusable(answer["field"], answer["error"])
    return Probed(frozenset(answer["wants"]), answer["description"], answer["digest"])


def main() -> None:
    limit_process(parent_pid=int(sys.argv[1]))
    asked, answers = take_pipes()
    try:
        loaded = load(Code(**json.load(asked)))
        answer = {"wants": sorted(loaded.wants), "description": loaded.description, "digest": loaded.digest}
    except Unusable as error:
        answer = {"field": error.field, "error": str(error)}
    answers.write(json.dumps(answer).encode())
    os._exit(0)  # Threads that the import started do not matter.


if __name__ == "__main__":
    main()
