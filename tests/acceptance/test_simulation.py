"""Thousands of random schedules against the coordinator's real code; tests/simulation explains them.

SHOAL_SIMULATION_SEED is the first seed (default 1000), SHOAL_SIMULATION_SCHEDULES their number (default 2000).
"""

import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from shoal.models.no_torch import hide_torch
from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import load
from tests.simulation.simulation import Outcome, simulate
from tests.simulation.test_schedules import FAILING

SEED = int(os.environ.get("SHOAL_SIMULATION_SEED", "1000"))
NUM_SCHEDULES = int(os.environ.get("SHOAL_SIMULATION_SCHEDULES", "2000"))
MAX_TRIES = 100


def _simulate(seed: int, model: Path) -> Outcome:
    return simulate(seed, model)


@pytest.mark.timeout(4 * 3600)
def test_thousands_of_schedules_leave_every_run_whole(model: Path) -> None:
    began = time.monotonic()
    seeds = range(SEED, SEED + NUM_SCHEDULES)
    # Of its own, since what tests import is large, and each process ends after some schedules.
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count(), initializer=hide_torch, maxtasksperchild=200) as pool:
        outcomes = pool.starmap(_simulate, [(seed, model) for seed in seeds], chunksize=1)
    duration_s = time.monotonic() - began
    virtual_s = sum(outcome.virtual_s for outcome in outcomes)
    print(
        f"{len(outcomes)} schedules in {duration_s:.0f} s: {len(outcomes) / duration_s:.1f} a second, "
        f"{virtual_s / 3600:.0f} hours of virtual time"
    )
    kinds = Counter(json.loads(line)["kind"] for outcome in outcomes for line in outcome.trace if line.startswith("{"))
    print("events: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    failed = [str(outcome) for outcome in outcomes if outcome.violations]
    assert not failed, f"{len(failed)} of {len(outcomes)} schedules failed:\n" + "\n".join(failed[:20])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_fault_in_the_coordinator_is_found_out(model: Path, mutation: str) -> None:
    kept = [load(path.read_text()) for path in FAILING]  # Some faults need an order of events that is rarely drawn.
    with MUTATIONS[mutation]():
        for number, schedule in enumerate([*kept, *[None] * MAX_TRIES]):
            if (outcome := simulate(number, model, schedule)).violations:
                print(f"{mutation}: found by schedule {number}: {outcome}")
                return
    raise AssertionError(f"{MAX_TRIES} schedules did not find: {mutation}")
