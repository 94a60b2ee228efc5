"""Fixtures of every test."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def restored_environment() -> Iterator[None]:
    """Restores the environment after each module.

    A learner in the test's process writes RANK and WORLD_SIZE, as torch requires; a learner that a later test starts
    would take them for torchrun's.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
