"""One schedule, from its seed to its verdict."""

import asyncio
import contextlib
import gc
import json
import logging
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from shoal.errors import ShoalError
from tests.simulation.invariants import events_of, violations
from tests.simulation.scenario import Scenario
from tests.simulation.schedule import Schedule, drawn
from tests.simulation.virtual_time import VirtualLoop, virtual_time
from tests.simulation.world import World, simulated

MAX_S = 3600.0
"""Of virtual time that a schedule may take: it hangs if it takes longer."""
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    seed: object
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    """What happened, by the virtual clock, and the run's events."""
    virtual_s: float

    def __str__(self) -> str:
        return f"seed {self.seed}: " + "; ".join(self.violations)


def simulate(seed: object, model: Path, schedule: Schedule | None = None) -> Outcome:
    """Plays the schedule of a seed, or a given one, and checks what must hold after it.

    The seed decides how long messages and work take, also where the schedule is given.
    """
    folder = Path(tempfile.mkdtemp(prefix="simulation.", dir=_MEMORY if _MEMORY.is_dir() else None))
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # The imports are many, and stay.
    gc.disable()  # What is collected runs its `finally`: at moments that no seed decides.
    try:
        return _simulate(seed, model, folder, schedule or drawn(random.Random(f"{seed}/scenario")))
    finally:
        with _in_silence():
            gc.collect()
        gc.enable()
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


def _simulate(seed: object, model: Path, folder: Path, schedule: Schedule) -> Outcome:
    loop = VirtualLoop(seed)
    with virtual_time(loop, seed):
        began = loop.time()
        world = World(loop, folder, seed)
        loop.set_exception_handler(lambda _, context: _unseen(world, context))
        with simulated(world):
            scenario = Scenario(world, model, schedule)
            found = _play(loop, world, scenario)
        virtual_s = loop.time() - began
        with _in_silence():
            loop.set_exception_handler(lambda *_: None)
            world.close()
            loop.close()
    return Outcome(seed, tuple(found), tuple(world.events), virtual_s)


def _play(loop: VirtualLoop, world: World, scenario: Scenario) -> list[str]:
    async def limited() -> list[str]:
        hangs = []
        try:
            async with asyncio.timeout(MAX_S):
                await scenario.play()
        except TimeoutError:
            hangs = [f"it has not ended after {MAX_S:g} s: {scenario.describe()}"]
        world.events += map(json.dumps, events_of(world))
        return hangs or await violations(world, scenario)

    try:
        return loop.run_until_complete(limited())
    except Exception as error:
        return [*world.plane.reports, f"{type(error).__name__}: {error}"]


def _unseen(world: World, context: dict[str, Any]) -> None:
    """Reports an error that nobody handles."""
    error = context.get("exception")
    if not isinstance(error, ShoalError):
        world.plane.report(f"{context['message']}: {error!r}")


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Lets what is left of a schedule be collected: its `finally` blocks find nothing that works any more."""
    with warnings.catch_warnings(), mock.patch.object(sys, "unraisablehook", lambda _: None):
        warnings.simplefilter("ignore")
        yield
