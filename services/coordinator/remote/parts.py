"""The parts of a growing file. A mirror gets the appended bytes and keeps the earlier parts.

    segments/text-00000001.segment.0-1310720.1f0c7e3a90d2              start, end, and the beginning of the digest
    segments/text-00000001.segment.1310720-2560000.77ab09c1d3e4

Each part begins at the end of the previous part. A small last part is copied again together with the bytes after it, so
that the number of parts stays small.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 8 << 20
_MIN_BYTES = 1 << 20
"""Minimum size of a part in bytes: a smaller part is replaced by a larger one when the file grows."""


@dataclass(frozen=True)
class Part:
    """A part of a file."""

    start: int
    end: int
    sha256: str

    def stored(self, path: str) -> str:
        """Returns the path of this part of a file within the run's folder in the mirror."""
        return f"{path}.{self.start}-{self.end}.{self.sha256[:12]}"

    @property
    def num_bytes(self) -> int:
        """The length of the part in bytes."""
        return self.end - self.start


def parts_there(path: str, known: Sequence[Part], num_bytes: int, there: Mapping[str, int]) -> list[Part]:
    """Returns the known parts that can stay in the mirror, from the first part on.

    `num_bytes` is the length of the file. `there` has the sizes of the mirror's files.
    """
    kept: list[Part] = []
    for part in known:
        is_large = part.num_bytes >= _MIN_BYTES or part.end == num_bytes
        if part.end > num_bytes or not is_large or there.get(part.stored(path)) != part.num_bytes:
            break
        kept.append(part)
    return kept


def divide(source: BinaryIO, num_bytes: int, known: Sequence[Part]) -> tuple[list[Part], str]:
    """Divides a file into the known parts that match and the rest. Returns the parts, and the digest of the file."""
    whole, parts = hashlib.sha256(), list[Part]()
    for part in known:
        content, before = hashlib.sha256(), whole.copy()
        for chunk in chunks(source, part.num_bytes):
            content.update(chunk)
            whole.update(chunk)
        if content.hexdigest() != part.sha256:
            whole = before
            break
        parts.append(part)
    start = parts[-1].end if parts else 0
    source.seek(start)
    content = hashlib.sha256()
    for chunk in chunks(source, num_bytes - start):
        content.update(chunk)
        whole.update(chunk)
    if start < num_bytes:
        parts.append(Part(start, num_bytes, content.hexdigest()))
    return parts, whole.hexdigest()


def chunks(source: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """Yields the next `num_bytes` of a file in chunks, or fewer if the file ends earlier."""
    while num_bytes and (chunk := source.read(min(num_bytes, CHUNK_BYTES))):
        num_bytes -= len(chunk)
        yield chunk
