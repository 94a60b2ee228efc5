"""Reading access to a ledger that another process may be writing.

Reading changes no data. SQLite may create or update `ledger.sqlite-shm` beside a log that a killed coordinator left.
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
    """Opens a ledger for the duration of a block, on the block's thread, in the state of one moment.

    Yields None while there is no ledger, or the ledger has no tables. A writer never waits for this reader. Raises
    `FailedPrecondition` for a ledger of another version of Shoal or a ledger that cannot be opened, and `DataLoss` for
    a damaged ledger.
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
        raise damaged(path, error) from error


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Surrounds code that only converts a ledger's rows. Raises `DataLoss` for a row with damage that SQLite missed."""
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DataLoss:
    """Makes the error for a damaged ledger."""
    return DataLoss(
        f"the ledger {path} is damaged ({error}); resume the run to restore the ledger of the last checkpoint",
        reason=ErrorReason.LEDGER_DAMAGED,
    )
