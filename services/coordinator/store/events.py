"""The event log of a run."""

import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.concurrency import Signal

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    sequence: int
    """1 for the first event, then one more each."""
    time_s: float
    """Seconds since the epoch."""
    kind: str
    message: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


class EventLog:
    """Appends events to `events.jsonl` and delivers them to watchers.

    A restore removes nothing: the events of abandoned attempts stay.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events = _read(path)
        self._file = path.open("a", encoding="utf-8")
        self._changed = Signal()
        self._closed = False

    def add(self, kind: str, message: str, **attributes: Any) -> None:
        """Appends one event and logs its message."""
        event = Event(len(self._events) + 1, time.time(), kind, message, attributes)
        self._events.append(event)
        _log.info(message, extra={"event": kind})
        record = {
            "sequence": event.sequence, "time_s": event.time_s, "kind": kind, "message": message,
            "attributes": attributes,
        }  # fmt: skip
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            # Watchers still receive it; a run does not end because its log cannot be written.
            _log.error("the event could not be written to %s: %s", self._path, error)
        self._changed.notify()

    async def watch(self, after_sequence: int = 0) -> AsyncIterator[Event]:
        """Yields the events after a sequence number, including future ones, until the log is closed."""
        position = max(after_sequence, 0)
        while True:
            changed = self._changed.next
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._closed:
                return
            await changed.wait()

    def close(self) -> None:
        """Ends the log: watchers receive the remaining events, then the end."""
        self._closed = True
        self._file.close()
        self._changed.notify()


def read_events(path: Path) -> "EventLog":
    """Reads the log of a run that has ended."""
    log = EventLog(path)
    log.close()
    return log


def _read(path: Path) -> list[Event]:
    if not path.exists():
        return []
    events: list[Event] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            fields = [record[key] for key in ("time_s", "kind", "message", "attributes")]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue  # The partial last line of a process that was killed.
        events.append(Event(len(events) + 1, *fields))
    return events
