"""The event log of a run: one event a line, in the JSON form of `RunEvent`."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.files.line_file import LineFile
from services.coordinator.store.turns import Turns
from shoal.concurrency import Signal
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, Unavailable
from shoal.parsing import parse_json
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire.json_form import json_line

_log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
_POLL_S = 0.2


class EventLog:
    """Appends events to `events.jsonl` and delivers them to watchers.

    A restore removes nothing: the events of abandoned attempts stay.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates a log. Raises as `read_events` does, and `OSError`."""
        self._events = read_events(path)
        self._file = LineFile(path)
        self._file.cut()
        self._changed = Signal()
        self._turns = Turns()
        self._closed = self._goes_on = False

    @property
    def past(self) -> Sequence[pb.RunEvent]:
        """The events so far."""
        return self._events

    def add(self, kind: str, message: str, **attributes: Any) -> None:
        """Appends one event and logs its message."""
        # Messages carry no lone surrogates, which stand for bytes of paths that are not UTF-8.
        event = pb.RunEvent(
            sequence=self._events[-1].sequence + 1 if self._events else 1,
            kind=kind,
            message=message.encode(errors="replace").decode(),
            attributes=json_format.Parse(json.dumps(attributes, ensure_ascii=False).encode(errors="replace"), Struct()),
        )
        event.event_time.FromMicroseconds(int(time.time() * 1e6))
        self._events.append(event)
        _log.info(message, extra={"event": kind})
        self._file.add(json_line(event))
        self._changed.notify()

    async def watch(self, after_sequence: int = 0) -> AsyncIterator[pb.RunEvent]:
        """Yields the events after a sequence number, including future ones, until the log is closed.

        A watcher that reads slowly gets them later, and skips none: it takes no memory, since the log keeps all events.

        Raises `Unavailable` at the end of the coordinator for a run that goes on at its next start.
        """
        position = 0
        while True:
            changed = self._changed.next
            while position < len(self._events):
                event = self._events[position]
                position += 1
                if event.sequence > after_sequence:
                    await self._turns.take()
                    yield event
            if self._closed and self._goes_on:
                raise Unavailable("the coordinator ends; the run goes on at its next start", reason=ErrorReason.ENDING)
            if self._closed:
                return
            await changed.wait()

    def close(self, *, goes_on: bool = False) -> None:
        """Ends the log: watchers receive the remaining events, then the end.

        Where the run `goes_on` at the coordinator's next start, they are to ask there for the events after those.
        """
        self._closed, self._goes_on = True, goes_on
        self._changed.notify()


def read_events(path: Path) -> list[pb.RunEvent]:
    """Reads the events so far; none if there is no file.

    Leaves out a line that is not whole, as a killed process or a full disk leaves it. Raises `FailedPrecondition` for
    the events of another version of Shoal.
    """
    return read_events_from(path, 0)[0]


async def follow_events(
    path: Path, is_driven: Callable[[], bool], after_sequence: int = 0
) -> AsyncIterator[pb.RunEvent]:
    """Yields the events that any process writes, until none drives the run. Raises as `read_events` does."""
    position = 0
    while True:
        goes_on = is_driven()  # Asked before reading: what is written until the end is read, too.
        events, position = await asyncio.to_thread(read_events_from, path, position)
        for event in events:
            if event.sequence > after_sequence:
                yield event
        if not goes_on:
            return
        await asyncio.sleep(_POLL_S)


def read_events_from(path: Path, position: int) -> tuple[list[pb.RunEvent], int]:
    """Reads the whole lines from a position in the file on; returns their events, and the position behind them."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        whole, newline, _ = file.read().rpartition(b"\n")
    events = [event for line in whole.split(b"\n") if (event := _parse(line, path)) is not None]
    return events, position + len(whole + newline)


def _parse(line: bytes, path: Path) -> pb.RunEvent | None:
    """Returns the event of a line; None for a line that is not whole."""
    try:
        values = parse_json(line)
    except ValueError:
        return None
    try:
        return json_format.ParseDict(values, pb.RunEvent())
    except json_format.ParseError:
        raise FailedPrecondition(
            f"another version of Shoal wrote {path}, whose events this one does not read: read them with that "
            "version; to resume the run without its past events, rename the file",
            reason=ErrorReason.EVENTS_VERSION,
        ) from None
