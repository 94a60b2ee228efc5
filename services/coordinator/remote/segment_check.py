"""The check of a run's segments after a restore. It runs during training, since training does not need the segments."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from services.coordinator.remote.mirror_folder import MirroredFile
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.parts import chunks
from services.coordinator.store.segments.segment import SegmentDigest
from services.coordinator.store.segments.series import SEGMENTS, Series


class SegmentCheck:
    """Compares segments with the digests of a restored checkpoint. A segment that was whole is not read again."""

    def __init__(self, run_folder: Path, mirroring: Mirroring, report: Callable[[str, str, str], None]) -> None:
        """Calls `report` with a damaged segment's name, its fault, and the mirror that replaced it ("" for none)."""
        self._folder = run_folder / SEGMENTS
        self._mirroring = mirroring
        self._report = report
        self._whole: set[SegmentDigest] = set()

    async def run(self, segments: Sequence[SegmentDigest]) -> None:
        """Reports the segments that are missing or differ, and takes each of them from the mirror if possible.

        Skips segments of tokens: groups with lost tokens are sampled again. Raises nothing.
        """
        wanted = [each for each in segments if not each.name.startswith(Series.TOKENS) and each not in self._whole]
        # Wrong sizes are reported before any file is read.
        for find in (_wrong_size, _wrong_content):
            for segment in list(wanted):
                if problem := await asyncio.to_thread(find, self._folder / segment.name, segment):
                    wanted.remove(segment)
                    self._report(segment.name, problem, await self._mirroring.take_back_file(mirrored(segment)))
        self._whole.update(wanted)


def mirrored(segment: SegmentDigest) -> MirroredFile:
    """Returns a segment as a file of a mirror."""
    return MirroredFile(f"{SEGMENTS}/{segment.name}", segment.num_bytes, segment.sha256, is_shared=True)


def _wrong_size(path: Path, segment: SegmentDigest) -> str:
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"the segment cannot be read: {error.strerror}"
    return "" if size >= segment.num_bytes else f"the segment has {size} of {segment.num_bytes} bytes"


def _wrong_content(path: Path, segment: SegmentDigest) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for chunk in chunks(file, segment.num_bytes):
                digest.update(chunk)
    except OSError as error:
        return f"the segment cannot be read: {error.strerror}"
    return "" if digest.hexdigest() == segment.sha256 else f"its SHA-256 is not {segment.sha256}"
