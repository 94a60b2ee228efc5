"""The pages of a log's events. The newest pages are in memory; older pages are read again if watchers begin there."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from shoal.errors import DataLoss
from shoal.v1 import coordinator_pb2 as pb

PAGE_BYTES = 64 << 10
KEPT_BYTES = 4 << 20
"""Maximum number of bytes of the newest events in memory, enough for about a thousand steps."""
_NUM_READ_AGAIN = 8
"""Number of older pages in memory, for watchers that read the same pages one after the other."""
_EVENT_BYTES = 128
"""Bytes that an event takes in memory in addition to its contents."""
_EVENT_TAG = bytes([pb.WatchRunResponse.EVENT_FIELD_NUMBER << 3 | 2])


class EventPage:
    """Consecutive events, each serialized once for all watchers."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.events: list[bytes] = []
        """Each event as a serialized `WatchRunResponse`. Joined, they form one response with all events."""
        self.num_bytes = 0

    def add(self, event: pb.RunEvent) -> None:
        """Appends an event."""
        self.sequences.append(event.sequence)
        self.events.append(pb.WatchRunResponse(events=[event]).SerializeToString())
        self.num_bytes += len(self.events[-1]) + _EVENT_BYTES

    def single(self, index: int) -> bytes:
        """Returns the `WatchRunResponse` with one event in `event`."""
        # The two fields are messages, and differ in the first byte: the number of the field.
        return _EVENT_TAG + self.events[index][1:]

    def batch(self, start: int) -> tuple[bytes, int]:
        """Returns a `WatchRunResponse` with the events from index `start` on that fit into 64 KiB, but at least one
        event. Also returns the index of the next event."""
        end, num_bytes = start + 1, len(self.events[start])
        while end < len(self.events) and (num_bytes := num_bytes + len(self.events[end])) <= PAGE_BYTES:
            end += 1
        return b"".join(self.events[start:end]), end

    @property
    def is_full(self) -> bool:
        """Whether the next event begins another page."""
        return self.num_bytes >= PAGE_BYTES


@dataclass
class _Lines:
    """The lines of a page in the file."""

    start: int
    end: int
    last_sequence: int = 0


class EventPages:
    """The pages of a log. Methods belong to one event loop."""

    def __init__(self, path: Path, parse: Callable[[bytes], pb.RunEvent | None]) -> None:
        """Reads the file, if it exists. `parse` returns the event of a line; None for a line without an event."""
        self._path = path
        self._parse = parse
        self._lines: list[_Lines] = []
        self._newest: deque[EventPage] = deque()
        self._kept_bytes = 0
        self._read_again: deque[EventPage] = deque(maxlen=_NUM_READ_AGAIN)
        self._in_memory: WeakValueDictionary[int, EventPage] = WeakValueDictionary()
        """All pages that are in use, also by slow watchers, so that no page is in memory twice."""
        self._reading = asyncio.Lock()
        self.last_sequence = 0
        if path.exists():
            with path.open("rb") as file:
                while lines := file.readlines(PAGE_BYTES):
                    self._add_past(lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, event: pb.RunEvent | None, line_bytes: int) -> None:
        """Adds the next line of the file, and its event."""
        if not self._newest or self._newest[-1].is_full:
            start = self._lines[-1].end if self._lines else 0
            self._in_memory[len(self._lines)] = page = EventPage()
            self._newest.append(page)
            self._lines.append(_Lines(start, start))
        self._lines[-1].end += line_bytes
        if event is not None:
            page = self._newest[-1]
            self._kept_bytes -= page.num_bytes
            page.add(event)
            self._kept_bytes += page.num_bytes
            self.last_sequence = self._lines[-1].last_sequence = event.sequence

    def _add_past(self, lines: list[bytes]) -> None:
        """Adds a page that is in the file. Parses its last event alone: a long run has millions."""
        start = self._lines[-1].end if self._lines else 0
        self._lines.append(_Lines(start, start + sum(map(len, lines))))
        for line in reversed(lines):
            if (event := self._parse(line)) is not None:
                self.last_sequence = self._lines[-1].last_sequence = event.sequence
                return

    def forget(self) -> None:
        """Keeps at most `KEPT_BYTES` of the newest pages in memory. Call it only while all lines are in the file."""
        while self._kept_bytes > KEPT_BYTES and len(self._newest) > 1:
            self._kept_bytes -= self._newest.popleft().num_bytes

    def first_after(self, sequence: int) -> int:
        """Returns the number of the first page with an event after `sequence`, or else of the last page."""
        return next(
            (number for number, lines in enumerate(self._lines) if lines.last_sequence > sequence),
            max(0, len(self._lines) - 1),
        )

    async def page(self, number: int) -> EventPage:
        """Returns a page. Reads the page from the file if it is no longer in memory, once for all who wait for it.

        Raises `DataLoss` when the file cannot be read, or its contents differ from what was written.
        """
        if (page := self._in_memory.get(number)) is not None:
            return page
        async with self._reading:
            if (page := self._in_memory.get(number)) is None:
                page = await asyncio.to_thread(self._read, number)
                self._in_memory[number] = page
                self._read_again.append(page)
            return page

    def _read(self, number: int) -> EventPage:
        lines, page = self._lines[number], EventPage()
        try:
            with self._path.open("rb") as file:
                file.seek(lines.start)
                content = file.read(lines.end - lines.start)
        except OSError as error:
            raise DataLoss(f"{self._path} cannot be read: {error.strerror}") from None
        for line in content.split(b"\n"):
            if (event := self._parse(line)) is not None:
                page.add(event)
        if (page.sequences or [0])[-1] != lines.last_sequence:
            raise DataLoss(f"{self._path} lacks events that this run wrote: another program has changed the file")
        return page
