"""Replacement of a run's ledger when an attempt begins, while readers may have it open.

SQLite copies pages from one database into another under its own locks. Do not rename a file instead: SQLite finds a
write-ahead log by the file's name. A reader that has the former file open would leave its log behind, or take the new
file's log for its own (sqlite.org/howtocorrupt.html, section 2.4).
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted, ShoalError

NUM_SET_ASIDE = 3
"""Number of ledgers of earlier attempts that are kept, since a run may have many attempts."""


def set_aside(ledger: Path, attempt: int) -> None:
    """Copies the ledger of the attempt before `attempt` to a file beside it, and deletes older copies.

    Raises the errors of `replace_ledger`.
    """
    if not ledger.exists():
        return
    abandoned = ledger.with_name(f"{ledger.stem}.attempt-{attempt - 1}{ledger.suffix}")
    try:
        _copy(str(ledger), abandoned)
    except sqlite3.DatabaseError:
        # A damaged ledger can be neither copied nor read: nobody has it open.
        for suffix in ("", "-wal", "-shm"):
            file = ledger.with_name(ledger.name + suffix)
            if file.exists():
                file.rename(abandoned.with_name(abandoned.name + suffix))
    for old in ledger.parent.glob(f"{ledger.stem}.attempt-*{ledger.suffix}*"):
        number = old.name.removeprefix(f"{ledger.stem}.attempt-").partition(".")[0]
        if number.isdecimal() and int(number) < attempt - NUM_SET_ASIDE:
            old.unlink()


def replace_ledger(ledger: Path, snapshot: Path | None) -> None:
    """Replaces the contents of a ledger by the contents of a snapshot, or by nothing.

    Raises `ResourceExhausted` if the disk is full or fails, and `FailedPrecondition` if a file cannot be opened. After
    an error the ledger has its former contents.
    """
    _copy(":memory:" if snapshot is None else str(snapshot), ledger)


def _copy(source: str, target: Path) -> None:
    try:
        with closing(sqlite3.connect(source)) as copied, closing(sqlite3.connect(target)) as replaced:
            copied.backup(replaced)
    except sqlite3.OperationalError as error:  # It says nothing of the contents: they may be whole.
        if target.exists() and not target.stat().st_size:
            target.unlink()  # SQLite has undone what it wrote to a new file.
        raise _failed(error, target) from error


def _failed(error: sqlite3.OperationalError, target: Path) -> ShoalError:
    if "full" in str(error) or "I/O" in str(error):
        return ResourceExhausted(
            f"the disk of {target.parent} is full or fails ({error}): {target.name} was not written; free some space "
            "and resume the run",
            reason=ErrorReason.DISK_FULL,
        )
    return FailedPrecondition(
        f"{target} cannot be written: {error}; make {target.parent} writable, end other programs that use the ledger, "
        "and resume the run",
        reason=ErrorReason.FOLDER,
    )
