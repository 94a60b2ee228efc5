import sqlite3
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store import replacement
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.store.rollouts import count_groups
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted


async def write_ledger(path: Path, policy_version: int) -> None:
    """Writes a ledger that a run has left at a policy version."""
    ledger = Ledger(path, attempt=0)
    await ledger.open()
    await ledger.step_done(Progress(policy_version, policy_version * 4, 0), trained=(), dropped=())
    await ledger.close()


def version_in(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        (version,) = connection.execute("SELECT policy_version FROM progress").fetchone()
    connection.close()
    return int(version)


@pytest.fixture
async def ledger(tmp_path: Path) -> Path:
    """A ledger at version 9, beside a snapshot at version 5."""
    await write_ledger(tmp_path / "ledger.sqlite", 9)
    await write_ledger(tmp_path / "snapshot.sqlite", 5)
    return tmp_path / "ledger.sqlite"


async def test_a_reader_of_the_abandoned_ledger_does_no_harm_to_the_new_one(ledger: Path, tmp_path: Path) -> None:
    reader = sqlite3.connect(ledger, isolation_level=None)
    reader.execute("BEGIN")
    before = reader.execute("SELECT policy_version FROM progress").fetchone()
    set_aside(ledger, attempt=1)
    replace_ledger(ledger, tmp_path / "snapshot.sqlite")
    attempt = Ledger(ledger, attempt=1)
    assert (await attempt.open()).policy_version == 5
    await attempt.step_done(Progress(6, 24, 0), trained=(), dropped=())
    assert reader.execute("SELECT policy_version FROM progress").fetchone() == before == (9,)
    reader.close()  # The last reader of a database deletes its write-ahead log.
    assert version_in(ledger) == 6, "the new attempt's step is lost"
    await attempt.close()
    assert version_in(ledger) == 6 and version_in(tmp_path / "ledger.attempt-0.sqlite") == 9
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"ledger.sqlite", "ledger.attempt-0.sqlite", "snapshot.sqlite"}, left


async def test_without_a_snapshot_a_ledger_begins_again(ledger: Path) -> None:
    replace_ledger(ledger, None)
    attempt = Ledger(ledger, attempt=1)
    assert (await attempt.open()).policy_version == 0
    await attempt.close()
    assert count_groups(ledger.parent) == {}


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no database grow: SQLite then reports what it reports of a full disk."""
    connect = sqlite3.connect

    def connect_on_a_full_disk(*arguments: Any) -> sqlite3.Connection:
        connection = connect(*arguments)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(replacement.sqlite3, "connect", connect_on_a_full_disk)


async def test_a_full_disk_leaves_the_ledger_where_it_is(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(ResourceExhausted, match=r"ledger\.attempt-0\.sqlite") as caught:
            set_aside(ledger, attempt=1)
    assert caught.value.reason == ErrorReason.DISK_FULL
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"ledger.sqlite", "snapshot.sqlite"}, left
    assert version_in(ledger) == 9


async def test_a_full_disk_leaves_no_empty_ledger_in_place_of_a_damaged_one(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.unlink()
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(ResourceExhausted, match=r"ledger\.sqlite was not written"):
            replace_ledger(ledger, tmp_path / "snapshot.sqlite")
    assert not ledger.exists()
    replace_ledger(ledger, tmp_path / "snapshot.sqlite")
    assert version_in(ledger) == 5


async def test_a_ledger_that_cannot_be_opened_is_not_taken_for_a_damaged_one(ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "ledger.attempt-0.sqlite").mkdir()
    with pytest.raises(FailedPrecondition, match="unable to open") as caught:
        set_aside(ledger, attempt=1)
    assert caught.value.reason == ErrorReason.FOLDER
    assert version_in(ledger) == 9


async def test_the_ledgers_of_the_last_attempts_are_kept_and_older_ones_deleted(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    for attempt in range(1, 13):
        await write_ledger(ledger, attempt)
        set_aside(ledger, attempt)
        ledger.unlink()
    kept = {path.name for path in tmp_path.glob("ledger.attempt-*")}
    assert kept == {f"ledger.attempt-{attempt}.sqlite" for attempt in (9, 10, 11)}, kept
