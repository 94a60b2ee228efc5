"""Fixtures of the coordinator's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.rollouts import LEDGER


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """The ledger of a first attempt, open; it is in the test's folder."""
    ledger = Ledger(tmp_path / LEDGER, attempt=0)
    await ledger.open()
    yield ledger
    await ledger.close()
