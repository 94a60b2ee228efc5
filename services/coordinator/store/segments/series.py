"""The segments of a run, in three series. Text and groups are kept; tokens are deleted after their groups are used up.

    <run>/segments/text-00000001.segment
    <run>/segments/tokens-00000002.segment
    <run>/segments/groups-00000003.segment

A segment ends at 128 MiB, and with its process: each attempt writes its own files. So a restore changes no file. The
records of an abandoned attempt stay in its files, beyond the lengths that the checkpoint names. Its ledger finds them.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path

from services.coordinator.store.segments.segment import RecordPlace, Segment, SegmentDigest

SEGMENTS = "segments"
SEGMENT_BYTES = 128 << 20
_NAME = re.compile(r"(text|tokens|groups)-([0-9]{8,})\.segment")


class Series(StrEnum):
    """The kind of a segment's contents."""

    TEXT = "text"
    TOKENS = "tokens"
    GROUPS = "groups"
    """Blocks of groups that are used up: states, rewards, transitions, and where their texts are."""


def segment_name(series: Series, number: int) -> str:
    """Names the file of a segment."""
    return f"{series}-{number:08d}.segment"


class SegmentWriter:
    """Appends records to the segments of a run. Not thread-safe, `sync` excepted."""

    def __init__(self, folder: Path) -> None:
        """Names the folder, which is created with the first record."""
        self._folder = folder
        self._open: dict[Series, tuple[int, Segment]] = {}
        self._ended: dict[str, SegmentDigest] = {}
        self._unsynced: set[str] = set()
        self.last_number = 0
        """Number of the last segment in the ledger, whose file may be gone. No number is used twice."""

    def append(self, series: Series, record: bytes) -> RecordPlace:
        """Appends a record to a series. Raises `OSError` as `Segment.append` does."""
        if series not in self._open:
            self._open[series] = self._begin(series)
        number, segment = self._open[series]
        place = RecordPlace(number, segment.append(record), len(record))
        if segment.num_bytes >= SEGMENT_BYTES:
            self._end(series)
        return place

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """If the block raises, removes the records that it has appended, except from segments that ended meanwhile."""
        marks = {number: segment.mark() for number, segment in self._open.values()}
        try:
            yield
        except BaseException:
            for number, segment in self._open.values():
                segment.go_back(marks.get(number))
            raise

    def _begin(self, series: Series) -> tuple[int, Segment]:
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(match[2]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        number = self.last_number = max([self.last_number, *numbers]) + 1
        segment = Segment(self._folder / segment_name(series, number))
        self._unsynced.add(segment.path.name)
        return number, segment

    def _end(self, series: Series) -> None:
        _, segment = self._open.pop(series)
        self._ended[segment.path.name] = segment.digest()
        segment.close()

    def digests(self) -> list[SegmentDigest]:
        """Returns the digests of all segments that this writer has begun, each up to its last record."""
        return [*self._ended.values(), *(segment.digest() for _, segment in self._open.values())]

    def sync(self, digests: Collection[SegmentDigest]) -> None:
        """Syncs the segments of `digests` to disk, ended segments only once. Works on any thread. Raises `OSError`."""
        names = {digest.name for digest in digests} & self._unsynced
        for path in [*(self._folder / name for name in sorted(names)), *([self._folder] if names else ())]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._unsynced -= {name for name in names if self._ended.get(name) in digests}

    def delete_tokens(self, keep: Collection[str]) -> None:
        """Deletes the segments of tokens whose names are not in `keep`, except the one that is being written."""
        writing = {segment.path.name for _, segment in self._open.values()}
        for path in self._folder.glob(f"{Series.TOKENS}-*.segment"):
            if path.name not in writing and path.name not in keep:
                with contextlib.suppress(OSError):  # It is tried again at the next checkpoint.
                    path.unlink(missing_ok=True)
                    self._ended.pop(path.name, None)

    def close(self) -> None:
        """Ends all segments."""
        for series in list(self._open):
            self._end(series)
