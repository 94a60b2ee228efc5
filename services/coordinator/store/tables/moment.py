"""A moment of the ledger: its state at one time, which can be copied while later transactions change the ledger."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from services.coordinator.store.segments.segment import SegmentDigest


class Moment:
    """The state of the database at one time. Close it after use."""

    def __init__(self, database: Path, segments: Sequence[SegmentDigest]) -> None:
        """`segments` are the segments that the database needs now."""
        self.segments = segments
        # A reader of a write-ahead log keeps the state that it first read.
        self._reader = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT 1 FROM sqlite_master").fetchone()

    def copy(self, path: Path) -> None:
        """Writes the state to one database file, without a log, so that a digest covers all. Works on any thread."""
        with closing(sqlite3.connect(path)) as target:
            self._reader.backup(target)
            # Without it the copy has the room of the groups that have left. A container may have no other disk.
            target.execute("PRAGMA temp_store = MEMORY")
            target.execute("VACUUM")
            target.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        """Releases the state. Works on any thread."""
        self._reader.close()
