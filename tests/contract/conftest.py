"""Fixtures of the contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.coordinator.workers import registry
from tests.support.cluster import Cluster
from tests.support.remembered_texts import remembered_texts as remembered_texts
from tests.support.tiny_model import make_tiny_model
from tests.support.warm_modules import warm_modules as warm_modules


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted workers send a heartbeat every second."""
    monkeypatch.setattr(registry, "LEASE_S", 4.0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster.running(tmp_path / "runs") as cluster:
        yield cluster
