"""A generator process that plays `guess_number` by halving: `python -m tests.support.guessing_policy COORDINATOR LOG`.

It has no engine. Each turn takes some time, and half of its tokens are reported on the way. What it is asked for, and
what it has sent, are lines of the log, which several processes share.
"""

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from shoal.v1 import generator_pb2
from tests.support.scripted_environment import ScriptedPolicy
from tests.support.scripted_workers import Plane, serve_worker

LOWEST, HIGHEST = 1, 1000
TURN_S = 0.1


def guess_after(hints: list[tuple[str, int]]) -> int:
    low, high = LOWEST, HIGHEST
    for hint, number in hints:
        low, high = (number + 1, high) if hint == "higher" else (low, number - 1)
    return (low + high) // 2


def guesses_for(number: int) -> list[int]:
    hints: list[tuple[str, int]] = []
    guesses = [guess_after(hints)]
    while guesses[-1] != number:
        hints.append(("higher" if number > guesses[-1] else "lower", guesses[-1]))
        guesses.append(guess_after(hints))
    return guesses


def _says(text: str, seed: int) -> str:
    hints = [(hint, int(number)) for hint, number in re.findall(r"It is (higher|lower) than (\d+)", text)]
    return f"<guess>{guess_after(hints)}</guess>"


class _OverAtOnce(dict[int, asyncio.Event]):
    """Broadcasts that end at once: this process shares none with the learner."""

    def setdefault(self, epoch: int, default: Any = None) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event


class GuessingPolicy(ScriptedPolicy):
    def __init__(self, log: str) -> None:
        super().__init__(Plane(sent=_OverAtOnce()), _says)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        prefix = len(request.prefixes[0].token_ids) // 4 if request.prefixes else 0
        self._note("asked", request.request_id, prefix)
        async for response in super().GenerateGroup(request, context):
            if response.HasField("completion"):
                tokens = len(response.completion.token_ids) // 4
                half = self._fields(self._ids(response)[: tokens // 2])
                await asyncio.sleep(TURN_S / 2)
                part = generator_pb2.CompletionPart(sample_index=0, **half)
                yield generator_pb2.GenerateGroupResponse(parts=[part])
                await asyncio.sleep(TURN_S / 2)
            yield response

    def _ids(self, response: generator_pb2.GenerateGroupResponse) -> Any:
        return np.frombuffer(response.completion.token_ids, "<i4")

    def _note(self, what: str, request_id: str, num_prefix_tokens: int) -> None:
        line = {"s": time.monotonic(), "what": what, "request": request_id, "prefix": num_prefix_tokens}
        os.write(self._log, (json.dumps(line) + "\n").encode())


async def _serve(coordinator: str, log: str) -> None:
    await serve_worker(coordinator, GuessingPolicy(log), f"policy-{os.getpid()}")
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("coordinator")
    parser.add_argument("log")
    given = parser.parse_args()
    asyncio.run(_serve(given.coordinator, given.log))
