"""One segment: an append-only file of records. A frame with the length and checksum precedes each record.

A record is read by its place, which the ledger has. Bytes outside of all places are ignored. A killed process or a full
disk may leave a part of a record. The next record overwrites that part, or the part stays behind the last record.
Records of a transaction that failed are removed.
"""

import contextlib
import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import DataLoss

_FRAME = struct.Struct("<II")
"""The number of the record's bytes, and their CRC-32; little-endian."""


@dataclass(frozen=True)
class RecordPlace:
    """The place of a record."""

    segment: int
    """The segment's number."""
    offset: int
    """Offset of the record's frame, in bytes."""
    num_bytes: int
    """Size of the record without its frame."""


@dataclass(frozen=True)
class SegmentDigest:
    """The digest of the first `num_bytes` bytes of a segment."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Mark:
    """The end of a segment at some moment."""

    num_bytes: int
    digest: "hashlib._Hash"
    """The digest of the contents so far."""


class Segment:
    """A segment that is being written, whose digest is updated with each record."""

    def __init__(self, path: Path) -> None:
        """Creates the file. Raises `OSError`, which is `FileExistsError` for an existing file."""
        self.path = path
        self.num_bytes = 0
        self._digest = hashlib.sha256()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def append(self, record: bytes) -> int:
        """Appends a record; returns the offset of its frame.

        Raises `OSError` if the disk is full or fails. The segment then still ends with the previous record.
        """
        frame = _FRAME.pack(len(record), zlib.crc32(record))
        offset = self.num_bytes
        self._write(frame, offset)
        self._write(record, offset + len(frame))
        self._digest.update(frame)
        self._digest.update(record)
        self.num_bytes += len(frame) + len(record)
        return offset

    def _write(self, data: bytes, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            rest, offset = rest[written:], offset + written

    def mark(self) -> "Mark":
        """Returns the present end of the segment, for `go_back`."""
        return Mark(self.num_bytes, self._digest.copy())

    def go_back(self, mark: "Mark | None") -> None:
        """Removes all records that were appended after a mark; without a mark, all records."""
        self.num_bytes, self._digest = (mark.num_bytes, mark.digest) if mark else (0, hashlib.sha256())
        with contextlib.suppress(OSError):  # Then the next record is written over it.
            os.ftruncate(self._file, self.num_bytes)

    def digest(self) -> SegmentDigest:
        """Returns the digest of what has been written."""
        return SegmentDigest(self.path.name, self.num_bytes, self._digest.copy().hexdigest())

    def close(self) -> None:
        """Ends the segment: nothing is appended afterward."""
        os.close(self._file)


def read_record(path: Path, offset: int, num_bytes: int) -> bytes:
    """Reads a record, even while others are appended. Raises `DataLoss` if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            frame = file.read(_FRAME.size)
            # Not more than there is: a damaged length would take all memory.
            record = file.read(min(num_bytes, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise DataLoss(f"{path} cannot be read: {error.strerror}") from None
    if frame != _FRAME.pack(num_bytes, zlib.crc32(record)):
        raise DataLoss(f"{path} is damaged: its {num_bytes}-byte record at offset {offset} was changed or cut off")
    return record
