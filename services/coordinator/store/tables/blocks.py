"""Blocks: records in the segments, to which the ledger moves the groups that steps have used up.

A block is a compressed SQLite image of up to 32 groups. The image has the ledger's own tables, so the statements that
read the ledger can also read a block. Order numbers increase from block to block, and are highest in the ledger's own
tables. A checkpoint copies only the groups after the last block, however long the run is.
"""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.store.segments.segment import RecordPlace, read_record
from services.coordinator.store.segments.series import SegmentWriter, Series, segment_name
from services.coordinator.store.tables.schema import BLOCKS_VERSION, GROUP_TABLES, INDEXES, SCHEMA_VERSION
from shoal.errors import DataLoss

GROUPS_PER_BLOCK = 32
LOST = "LOST"
"""The state that readers get for a group whose block is damaged or missing."""

_ROWS = (
    ("groups", "TRUE"),
    ("completions", "TRUE"),
    ("transitions", "TRUE"),
    ("payloads", "kind NOT IN ('tokens', 'token_advantages')"),
)
"""The tables of a block, each with the condition on the copied rows. The tokens of used-up groups are not needed."""


@dataclass(frozen=True)
class Block:
    """Says where the rows of consecutive groups are stored, and which steps used up these groups."""

    first_order_number: int
    last_order_number: int
    first_step: int
    last_step: int
    place: RecordPlace

    def has_step(self, step: int) -> bool:
        """Whether the block may have groups that a step used up. Step 0 stands for any step."""
        return not step or self.first_step <= step <= self.last_step


def move_to_block(connection: sqlite3.Connection, writer: SegmentWriter) -> bool:
    """Moves the oldest groups that steps have used up to a new block; returns whether there were any.

    Raises `OSError` as `SegmentWriter.append` does.
    """
    first, last, last_position = connection.execute(
        "SELECT MIN(order_number), MAX(order_number), MAX(position) FROM (SELECT order_number, position FROM groups"
        " WHERE order_number < (SELECT next_order_number FROM progress) ORDER BY order_number LIMIT ?)",
        (GROUPS_PER_BLOCK,),
    ).fetchone()
    if first is None:
        return False
    within = f"order_number BETWEEN {first} AND {last}"
    place = writer.append(Series.GROUPS, zlib.compress(_image_of(connection, within)))
    connection.execute(
        "INSERT INTO blocks SELECT ?, ?, COALESCE(MIN(policy_version), 0), COALESCE(MAX(policy_version), 0), ?, ?, ?, ?"
        f" FROM transitions WHERE {within} AND state IN ('TRAINED', 'DROPPED')",
        (first, last, last_position, place.segment, place.offset, place.num_bytes),
    )
    connection.execute(
        f"INSERT INTO block_counts SELECT state, drop_reason, COUNT(*) FROM groups WHERE {within} GROUP BY 1, 2"
        " ON CONFLICT DO UPDATE SET num_groups = num_groups + excluded.num_groups"
    )
    for table, _ in _ROWS:
        connection.execute(f"DELETE FROM {table} WHERE {within}")
    return True


def _image_of(connection: sqlite3.Connection, within: str) -> bytes:
    """Makes the image of a database with the rows of some groups alone."""
    with closing(_empty()) as image:
        _copy_rows(connection, image, within)
        return image.serialize()


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, within: str = "TRUE") -> None:
    for table, condition in _ROWS:
        rows = source.execute(f"SELECT * FROM {table} WHERE {within} AND {condition}")
        columns = [name for name, *_ in rows.description]
        values = ", ".join("?" * len(columns))
        target.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)
    target.commit()


def _empty() -> sqlite3.Connection:
    image = sqlite3.connect(":memory:")
    image.executescript(f"PRAGMA page_size = 1024; {GROUP_TABLES} {INDEXES} PRAGMA user_version = {SCHEMA_VERSION};")
    return image


class WholeLedger:
    """Reads a ledger together with its blocks. The ledger and each block are *parts*, which have the same tables.

    A part can be read until the next part is requested. If a block cannot be read, its groups have the state LOST, and
    the texts of their prompts give the reason.
    """

    def __init__(self, connection: sqlite3.Connection, segments: Path) -> None:
        self._connection = connection
        self._segments = segments
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        self._has_blocks = version >= BLOCKS_VERSION
        self._read: tuple[Block, sqlite3.Connection] | None = None

    def parts(self, *, first: int = 0, step: int = 0) -> Iterator[sqlite3.Connection]:
        """Yields the parts that may have groups of `step` from order number `first` on, oldest groups first."""
        for block in self._blocks("last_order_number >= ?", first):
            if block.has_step(step):
                yield self._open(block)
        yield self._connection

    def newest_parts(self, *, step: int = 0) -> Iterator[sqlite3.Connection]:
        """Yields the parts that may have groups of `step`, newest groups first."""
        yield self._connection
        for block in reversed(self._blocks()):
            if block.has_step(step):
                yield self._open(block)

    def part_of(self, order_number: int) -> sqlite3.Connection:
        """Returns the part that has a group."""
        return next(self.parts(first=order_number))

    def merged(self) -> sqlite3.Connection:
        """Copies the ledger, including the groups of all blocks, to a database in memory for SQL queries."""
        target = sqlite3.connect(":memory:")
        self._connection.backup(target)
        for block in self._blocks():
            _copy_rows(self._open(block), target)
        return target

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """Yields each state and drop reason with the number of groups. A state and reason may occur twice."""
        yield from self._connection.execute("SELECT state, drop_reason, COUNT(*) FROM groups GROUP BY 1, 2")
        if self._has_blocks:
            yield from self._connection.execute("SELECT state, drop_reason, num_groups FROM block_counts")

    def _blocks(self, condition: str = "TRUE", *values: int) -> list[Block]:
        if not self._has_blocks:
            return []
        rows = self._connection.execute(
            "SELECT first_order_number, last_order_number, first_step, last_step, segment, start, num_bytes FROM blocks"
            f" WHERE {condition} ORDER BY 1",
            values,
        )
        return [
            Block(first, last, first_step, last_step, RecordPlace(*place))
            for first, last, first_step, last_step, *place in rows
        ]

    def _open(self, block: Block) -> sqlite3.Connection:
        if self._read is None or self._read[0] != block:
            self._read = (block, _opened(block, self._segments))
        return self._read[1]


def _opened(block: Block, segments: Path) -> sqlite3.Connection:
    """Opens the image of a block. If the block cannot be read, opens an image with LOST groups."""
    path = segments / segment_name(Series.GROUPS, block.place.segment)
    try:
        image = sqlite3.connect(":memory:")
        image.deserialize(zlib.decompress(read_record(path, block.place.offset, block.place.num_bytes)))
    except DataLoss as error:
        image = _empty()
        last = min(block.last_order_number, block.first_order_number + GROUPS_PER_BLOCK - 1)  # A file may say anything.
        image.executemany(
            "INSERT INTO groups (order_number, group_id, prompt_id, position, prompt_text, trace_id, state, num_issues)"
            " VALUES (?, '[lost ' || ? || ']', '', -1, ?, '', ?, 0)",
            [
                (number, number, f"[lost: {error.message}]", LOST)
                for number in range(block.first_order_number, last + 1)
            ],
        )
    return image
