"""Fixtures of the contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.house import House
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    await house.open()
    try:
        yield house
    finally:
        await house.close()
