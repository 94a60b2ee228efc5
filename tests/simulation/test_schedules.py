"""Random schedules of kills, delays, repeats and verbs against the coordinator's real code: what must hold, holds."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import drawn, load
from tests.simulation.simulation import simulate
from tests.support.repository import ROOT
from tests.support.tiny_model import make_tiny_model

NUM_SCHEDULES = 8
FAILING = sorted(Path(__file__).with_name("failing").glob("*.json"))
QUICK_MUTATIONS = ("release one slot too many with each step", "void nothing of the ledger at a restore")
"""`make accept` tries them all."""
MAX_TRIES = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
def test_a_run_ends_whole_whatever_happens_to_it(model: Path, seed: int) -> None:
    outcome = simulate(seed, model)
    assert not outcome.violations, str(outcome)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("path", FAILING, ids=[path.stem for path in FAILING])
def test_a_schedule_that_once_failed_leaves_the_run_whole(model: Path, path: Path, seed: int) -> None:
    schedule = load(path.read_text())
    outcome = simulate(seed, model, schedule)
    assert not outcome.violations, f"{outcome} (once: {schedule.found})"


def test_a_schedule_is_written_down_as_it_is_drawn() -> None:
    schedule = drawn(random.Random(3))
    assert load(schedule.dump()) == schedule


def test_a_seed_is_the_same_schedule_in_every_process(model: Path) -> None:
    program = f"""
import sys; from pathlib import Path; from shoal.models.no_torch import hide_torch; hide_torch()
from tests.simulation.simulation import simulate
sys.stdout.write("\\n".join(simulate(7, Path({str(model)!r})).trace))
"""
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    there = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    simulate(8, model)  # What came before changes nothing.
    here = "\n".join(simulate(7, model).trace).split("\n")
    assert here == there, next(
        (number, one, other) for number, (one, other) in enumerate(zip(here, there, strict=False)) if one != other
    )


@pytest.mark.parametrize("mutation", QUICK_MUTATIONS)
def test_a_coordinator_with_a_fault_is_found_out(model: Path, mutation: str) -> None:
    schedules = [*(load(path.read_text()) for path in FAILING), *[None] * MAX_TRIES]
    with MUTATIONS[mutation]():
        found = any(simulate(seed, model, schedule).violations for seed, schedule in enumerate(schedules))
    assert found, f"{len(schedules)} schedules did not find it"
