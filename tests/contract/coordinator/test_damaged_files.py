"""Files with arbitrary contents make no reader raise anything but a `ShoalError` (see tests/support/fuzzed_files)."""

import random

import pytest

from tests.support.fuzzed_files.mutation import mutated
from tests.support.fuzzed_files.targets import TARGETS
from tests.support.fuzzed_files.trial import problem

_FILES = 4
_DEADLINE_S = 120.0
"""Imports are part of the first trial, and machines may be busy."""
_HERE = [name for name in TARGETS if not name.startswith("verifier-")]
"""The verifiers' own tests have hostile completions and labels."""


@pytest.mark.parametrize("name", _HERE)
def test_arbitrary_contents_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    for trial in range(_FILES):
        rng = random.Random(f"{name}.{trial}")
        wrong = problem(target, mutated(rng.choice(seeds), seeds, rng), _DEADLINE_S)
        assert not wrong, f"trial {trial}: {wrong}"
