"""A deterministic learner that is restored in new processes takes the steps that it would have taken, bit for bit."""

import json
from pathlib import Path

import pytest

from tests.acceptance.deterministic_learner import LAST_STEP, SAVED_AT, VARIANTS, result_file
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two ranks that saved and went on, and of two new ones that restored."""
    folder = tmp_path_factory.mktemp("learners")
    make_tiny_model(folder / "model", heads=8)
    for part in ("whole", "resumed"):
        run_ranks("tests.acceptance.deterministic_learner", (2,), str(folder), part, *VARIANTS)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_that_are_restored_go_on_bit_for_bit(folder: Path, variant: str) -> None:
    whole, resumed = (json.loads(result_file(folder, part, variant).read_text()) for part in ("whole", "resumed"))
    assert len(whole["steps"]) == LAST_STEP - SAVED_AT and len(whole["weights"]) > 10
    for number, (step, again) in enumerate(zip(whole["steps"], resumed["steps"], strict=True), start=SAVED_AT + 1):
        unequal = {name: (value, again.get(name)) for name, value in step.items() if value != again.get(name)}
        assert not unequal, f"{len(unequal)} of {len(step)} metrics of step {number} differ: {unequal}"
    others = [name for name, digest in whole["weights"].items() if resumed["weights"][name] != digest]
    assert not others, f"{len(others)} of {len(whole['weights'])} tensors differ: {others}"
