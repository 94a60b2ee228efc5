"""`python -m services.reward.custom.probe PARENT_PID`: loads a custom verifier in a separate process, since its code
may hang, crash or take all memory. Reads a `Code` as JSON from stdin, and writes one JSON object to stdout."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict

from services.reward.custom.code import Code, CustomVerifier, Unusable
from services.reward.custom.loading import load
from services.reward.process.child_process import ENVIRONMENT
from services.reward.process.frames import take_pipes
from services.reward.process.limits import limit_process

TIMEOUT_S = 120.0
"""Longest time of an import, as in a process of the pool."""


async def probe(code: Code) -> CustomVerifier:
    """Loads the code in another process. Raises `Unusable`, even if loading hangs or ends the process."""
    field = "file" if code.path else "entry_point"
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.reward.custom.probe", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
            process_group=0,
        )
    except OSError as error:
        raise Unusable(field, f"{code.location} cannot be tried, because no process can be started: {error}") from None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate(json.dumps(asdict(code)).encode())
    except TimeoutError:
        raise Unusable(field, f"{code.location} is not imported within {TIMEOUT_S:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # This also kills processes that the import has started.
        await process.wait()
    try:
        answer = json.loads(output)
    except ValueError:
        raise Unusable(
            field, f"{code.location} ends the process that imports it (exit code {process.returncode})"
        ) from None
    if "error" in answer:
        raise Unusable(answer["field"], answer["error"])
    return CustomVerifier(code, frozenset(answer["parameters"]), answer["description"], answer["digest"])


def main() -> None:
    limit_process(parent_pid=int(sys.argv[1]))
    request, answers = take_pipes()
    try:
        loaded = load(Code(**json.load(request)))
        answer = {"parameters": sorted(loaded.parameters), "description": loaded.description, "digest": loaded.digest}
    except Unusable as error:
        answer = {"field": error.field, "error": str(error)}
    answers.write(json.dumps(answer).encode())
    os._exit(0)  # Do not wait for threads that the import has started.


if __name__ == "__main__":
    main()
