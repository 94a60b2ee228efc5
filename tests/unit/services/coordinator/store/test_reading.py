"""What reading a ledger makes of errors."""

from pathlib import Path

import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.reading import interpreting, reading
from services.coordinator.store.rollouts import LEDGER
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss


async def test_only_what_rows_make_of_their_interpretation_is_damage(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.close()
    with pytest.raises(ValueError, match="a defect"), reading(tmp_path / LEDGER):
        raise ValueError("a defect of the code that reads")
    with pytest.raises(DataLoss, match="strange row") as damage, reading(tmp_path / LEDGER), interpreting(tmp_path):
        raise ValueError("strange row")
    assert damage.value.reason == ErrorReason.LEDGER_DAMAGED
