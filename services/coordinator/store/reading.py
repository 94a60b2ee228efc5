"""Reading access to a ledger that another process may be writing.

It writes no data. SQLite may create or update `ledger.sqlite-shm` beside a log that a killed coordinator left.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from services.coordinator.store.tables.schema import check_version
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Opens a ledger for the duration of a block, on the block's thread; it reads the state of one moment.

    Gives None while there is no ledger, or a ledger without tables. A writer never waits for it. Raises
    `FailedPrecondition` for a ledger of another version of Shoal or one that cannot be opened, and `DataLoss` for a
    damaged one.
    """
    if not path.exists():
        yield None
        return
    # A ledger without a write-ahead log beside it has no writer. SQLite would leave a log behind in reading it, and
    # cannot read it at all where it may not write, unless it is told that the file does not change. With a log it
    # needs `-shm`, which it makes where a killed coordinator or a copy left none.
    unchanging = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{unchanging}", uri=True)) as connection:
            connection.execute("BEGIN")
            is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
            if not is_empty:
                check_version(connection, path)
            yield None if is_empty else connection
    except sqlite3.OperationalError as error:
        raise FailedPrecondition(
            f"the ledger {path} cannot be read: {error}; if its folder is read-only, copy the folder and read the copy",
            reason=ErrorReason.FOLDER,
        ) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Surrounds code that makes values of a ledger's rows, and nothing else. Raises `DataLoss` where they make none.

    SQLite itself finds only some damage: it gives back any bytes that a row holds.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataLoss:
    return DataLoss(
        f"the ledger {path} is damaged ({error}); resume the run to restore the last checkpoint's",
        reason=ErrorReason.LEDGER_DAMAGED,
    )
