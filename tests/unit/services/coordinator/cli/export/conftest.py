from pathlib import Path

import pytest

from services.coordinator.store.run_record import RunRecord
from tests.support.exported_run import make_exported_run


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    return make_exported_run(tmp_path / "runs")
