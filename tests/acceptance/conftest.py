"""Fixtures of the acceptance tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import cluster as cluster
from tests.contract.conftest import model as model
from tests.support.standing import Standing


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    with Standing(tmp_path).registered() as services:
        yield services
