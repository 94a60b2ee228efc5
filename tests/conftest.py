"""What holds for every test."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def environment_of_its_own() -> Iterator[None]:
    """Takes back what a module's tests put into the environment.

    A learner in the test's own process writes RANK and WORLD_SIZE there, as torch asks; the learner that a later
    test starts would take them for torchrun's.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
