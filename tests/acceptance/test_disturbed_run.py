"""The run of tests/integration/test_run.py with two generators and two learner ranks, of which it loses a generator."""

import pytest

from tests.integration.test_run import *  # noqa: F403


@pytest.fixture(scope="module")
def launch() -> dict[str, int]:
    return {"num_generators": 2, "num_learner_ranks": 2, "num_rewards": 2}
