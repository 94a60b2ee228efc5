"""The ledger's table of segments, and its table of the places of payloads in the segments."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from services.coordinator.store.segments.records import PayloadKind
from services.coordinator.store.segments.segment import SegmentDigest, read_record
from services.coordinator.store.segments.series import SegmentWriter, Series, segment_name
from services.coordinator.store.tables.schema import PAYLOADS_VERSION

_TOKENS = f"kind IN ('{PayloadKind.TOKENS}', '{PayloadKind.TOKEN_ADVANTAGES}')"


def write_payload(
    connection: sqlite3.Connection, writer: SegmentWriter, order_number: int, kind: PayloadKind, record: bytes
) -> None:
    """Appends a payload to its series, and records its place. Raises `OSError` as `SegmentWriter.append` does."""
    place = writer.append(kind.series, record)
    connection.execute(
        "INSERT OR REPLACE INTO payloads VALUES (?, ?, ?, ?, ?)",
        (order_number, kind.value, place.segment, place.offset, place.num_bytes),
    )


def has_payload(connection: sqlite3.Connection, order_number: int, kind: PayloadKind) -> bool:
    """Whether a group has a payload of a kind."""
    query = "SELECT 1 FROM payloads WHERE order_number = ? AND kind = ?"
    return connection.execute(query, (order_number, kind.value)).fetchone() is not None


def read_payload(connection: sqlite3.Connection, segments: Path, order_number: int, kind: PayloadKind) -> bytes | None:
    """Reads a payload. Returns None if the group has no such payload, or the ledger's version has no payloads.

    Raises `DataLoss` when the segment of the payload is missing or damaged.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < PAYLOADS_VERSION:
        return None
    query = "SELECT segment, start, num_bytes FROM payloads WHERE order_number = ? AND kind = ?"
    row = connection.execute(query, (order_number, kind.value)).fetchone()
    if row is None:
        return None
    segment, start, num_bytes = row
    return read_record(segments / segment_name(kind.series, segment), start, num_bytes)


def last_segment(connection: sqlite3.Connection) -> int:
    """Returns the highest number of a segment in the ledger; 0 if the ledger has no segments."""
    (number,) = connection.execute(
        "SELECT MAX(number) FROM (SELECT 0 AS number UNION ALL SELECT MAX(segment) FROM payloads UNION ALL"
        " SELECT MAX(CAST(substr(name, instr(name, '-') + 1) AS INTEGER)) FROM segments)"
    ).fetchone()
    return int(number)


def forget_samples(connection: sqlite3.Connection, order_number: int) -> None:
    """Deletes the places of all payloads of a group except its prompt."""
    connection.execute("DELETE FROM payloads WHERE order_number = ? AND kind != 'prompt'", (order_number,))


def forget_used_tokens(connection: sqlite3.Connection) -> None:
    """Deletes the places of the tokens of groups that were trained on or dropped."""
    connection.execute(
        f"DELETE FROM payloads WHERE {_TOKENS} AND order_number IN (SELECT order_number FROM payloads JOIN groups"
        f" USING (order_number) WHERE {_TOKENS} AND state IN ('TRAINED', 'DROPPED'))"
    )


def name_segments(connection: sqlite3.Connection, writer: SegmentWriter) -> Sequence[SegmentDigest]:
    """Records the current digests of the segments. Returns the digests of the segments that the ledger needs: all
    segments of text and of groups, and the segments of tokens that groups still have."""
    connection.executemany(
        "INSERT OR REPLACE INTO segments VALUES (?, ?, ?)",
        [(digest.name, digest.num_bytes, digest.sha256) for digest in writer.digests()],
    )
    needed = {
        segment_name(Series.TOKENS, number)
        for (number,) in connection.execute(f"SELECT DISTINCT segment FROM payloads WHERE {_TOKENS}")
    }
    names = [name for (name,) in connection.execute(f"SELECT name FROM segments WHERE name LIKE '{Series.TOKENS}-%'")]
    connection.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in names if name not in needed])
    rows = connection.execute("SELECT name, num_bytes, sha256 FROM segments ORDER BY name")
    return [SegmentDigest(*row) for row in rows]
