"""Fixtures of tests that run programs."""

from collections.abc import Iterator

import pytest

from services.reward.sandbox import run
from services.reward.verifiers import code
from tests.support.warm_modules import warm_modules as warm_modules


@pytest.fixture(scope="module")
def sandbox() -> Iterator[None]:
    """Skips the tests of a module without a sandbox, and closes the sandboxes after them."""
    if reason := code.unavailable():
        pytest.skip(f"no sandbox: {reason}")
    yield
    run.close()
