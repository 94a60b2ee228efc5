"""The event log of a run, with one event per line, in the JSON form of `RunEvent`."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.event_pages import EventPages
from services.coordinator.store.files.line_file import LineFile
from shoal.concurrency import Signal
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, Unavailable
from shoal.parsing import parse_json
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire.json_form import json_line

_log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
_POLL_S = 0.2
_SEQUENCE = re.compile(rb'\{"sequence": (\d+),')
_READ_BYTES = 1 << 20
"""Bytes read at once from a followed file."""
_TURN_S = 0.0005
"""Pause in seconds before the turn of a watcher if there are several watchers."""


class EventLog:
    """Appends events to `events.jsonl`, delivers them to watchers, and keeps the events of abandoned attempts."""

    def __init__(self, path: Path, *, is_past: bool = False) -> None:
        """Opens or creates a log. If `is_past`, does not change the file. Raises `OSError`, and as `read_events`."""
        self._file = LineFile(path)
        self._run_id = path.parent.name
        if not is_past:
            self._file.cut()
        self._pages = EventPages(path, partial(_parse, path=path))
        self._changed = Signal()
        self._turns = _Turns()
        self._closed, self._goes_on = is_past, False

    def add(self, kind: str, message: str, **attributes: Any) -> None:
        """Appends one event and logs its message."""
        # Messages carry no lone surrogates, which stand for bytes of paths that are not UTF-8.
        event = pb.RunEvent(
            sequence=self._pages.last_sequence + 1,
            kind=kind,
            message=message.encode(errors="replace").decode(),
            attributes=json_format.Parse(json.dumps(attributes, ensure_ascii=False).encode(errors="replace"), Struct()),
        )
        event.event_time.FromMicroseconds(int(time.time() * 1e6))
        _log.info(message, extra={"event": kind, "run_id": self._run_id, "attributes": _plain(attributes)})
        line = json_line(event)
        self._pages.add(event, len(line) + 1)
        self._file.add(line)
        if not self._file.is_behind:
            self._pages.forget()
        self._changed.notify()

    async def watch(self, after_sequence: int = 0, *, batches: bool = False) -> AsyncIterator[bytes]:
        """Yields the events after a sequence number, including future ones, until the log is closed.

        Each item is a serialized `WatchRunResponse` with one event, or, with `batches`, with up to 64 KiB of events. A
        slow watcher gets events later, but skips none: events that are no longer in memory are read from the file.
        Raises `Unavailable` if the coordinator ends and the run continues at the coordinator's next start, and
        `DataLoss` if the file cannot be read.
        """
        number, index = self._pages.first_after(after_sequence), 0
        while True:
            changed = self._changed.next
            while number < len(self._pages):
                page = await self._pages.page(number)
                while index < len(page.events):
                    if page.sequences[index] <= after_sequence:
                        index += 1
                        continue
                    await self._turns.take()
                    if batches:
                        response, index = page.batch(index)
                    else:
                        response, index = page.single(index), index + 1
                    yield response
                if number + 1 == len(self._pages):
                    break  # The page that grows.
                number, index = number + 1, 0
            if self._closed and self._goes_on:
                raise Unavailable(
                    "the coordinator is ending; the run continues at the coordinator's next start",
                    reason=ErrorReason.ENDING,
                )
            if self._closed:
                return
            await changed.wait()

    def close(self, *, goes_on: bool = False) -> None:
        """Ends the log: watchers receive the remaining events, then the end, or `Unavailable` if the run `goes_on`."""
        self._closed, self._goes_on = True, goes_on
        self._changed.notify()


class _Turns:
    """Lets one watcher after the other continue, in the order of their requests.

    So a thousand watchers of one event delay the run's own work only by the time of one watcher. All watchers together
    get at most 2,000 turns a second; a watcher that is alone waits for nothing.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_waiting = 0

    async def take(self) -> None:
        """Waits for a turn."""
        self._num_waiting += 1
        try:
            async with self._lock:
                await asyncio.sleep(_TURN_S if self._num_waiting > 1 else 0)
        finally:
            self._num_waiting -= 1


class PastLogs:
    """Opens the logs of runs that have ended, each log once for all its watchers. Methods belong to one event loop."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[tuple[Path, int, int], EventLog] = WeakValueDictionary()
        """The watched logs, by file, size and time of the last change, since others may change the file."""
        self._opening = asyncio.Lock()

    async def watch(self, path: Path, after_sequence: int, *, batches: bool) -> AsyncIterator[bytes]:
        """Yields the events of a log after a given event; see `EventLog.watch`."""
        async with self._opening:
            state = await asyncio.to_thread(_state_of, path)
            log = self._logs.get(state)
            if log is None:
                log = self._logs[state] = await asyncio.to_thread(EventLog, path, is_past=True)
        async for response in log.watch(after_sequence, batches=batches):
            yield response


def _state_of(path: Path) -> tuple[Path, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return path, 0, 0
    return path, found.st_size, found.st_mtime_ns


def read_events(path: Path) -> list[pb.RunEvent]:
    """Reads all events of a file. Returns no events if there is no file.

    Leaves out an incomplete line, which a killed process or a full disk may leave. Raises `FailedPrecondition` for the
    events of another version of Shoal.
    """
    return read_events_from(path, 0)[0]


async def follow_events(
    path: Path, is_driven: Callable[[], bool], after_sequence: int = 0, *, kinds: Collection[str] = ()
) -> AsyncIterator[pb.RunEvent]:
    """Yields the events that any process writes, until no process drives the run.

    With `kinds`, yields only events of these kinds. Raises as `read_events` does.
    """
    position = 0
    while True:
        goes_on = is_driven()  # Asked before reading: what is written until the end is read, too.
        before = None
        while position != before:
            before = position
            events, position = await asyncio.to_thread(
                read_events_from, path, position, _READ_BYTES, after_sequence=after_sequence, kinds=kinds
            )
            for event in events:
                yield event
        if not goes_on:
            return
        await asyncio.sleep(_POLL_S)


def read_events_from(
    path: Path, position: int, num_bytes: int = -1, *, after_sequence: int = 0, kinds: Collection[str] = ()
) -> tuple[list[pb.RunEvent], int]:
    """Reads the complete lines after a position in the file. Returns their events, and the position after them.

    Reads only lines that begin within `num_bytes`, and only events after `after_sequence` and of `kinds`, if given.
    """
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        whole, newline, _ = (file.read(num_bytes) + file.readline()).rpartition(b"\n")
    # Parsing is the cost: a long run has millions of events.
    named = [f'"{kind}"'.encode() for kind in kinds]
    lines = (line for line in whole.split(b"\n") if not named or any(name in line for name in named))
    parsed = (_parse(line, path) for line in lines if not _is_up_to(after_sequence, line))
    events = [event for event in parsed if event is not None and event.sequence > after_sequence]
    return [event for event in events if not kinds or event.kind in kinds], position + len(whole + newline)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes for a log's line, without tables and lists: `events.jsonl` has the texts and metrics."""
    return {name: value for name, value in attributes.items() if not isinstance(value, (Mapping, list, tuple))}


def _is_up_to(sequence: int, line: bytes) -> bool:
    """Whether a line has an event up to a sequence number."""
    return sequence > 0 and (found := _SEQUENCE.match(line)) is not None and int(found[1]) <= sequence


def _parse(line: bytes, path: Path) -> pb.RunEvent | None:
    """Returns the event of a line; None for an incomplete line."""
    try:
        values = parse_json(line)
    except ValueError:
        return None
    try:
        return json_format.ParseDict(values, pb.RunEvent())
    except json_format.ParseError:
        raise FailedPrecondition(
            f"{path} has events that this version of Shoal cannot read, since another version wrote them: read them "
            "with that version, or rename the file to resume the run without its past events",
            reason=ErrorReason.EVENTS_VERSION,
        ) from None
