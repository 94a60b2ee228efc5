"""The events of a run's workers: workers that joined, leave or are lost, and status messages of services."""

from collections.abc import Sequence

from services.coordinator.store.events import EventLog
from services.coordinator.workers.member import NAMES, Kind, Member, worker_name
from services.coordinator.workers.registry import WorkerRecord
from shoal.v1 import worker_pb2


class WorkerEvents:
    """Writes the events of workers to the log of a run."""

    def __init__(self, events: EventLog) -> None:
        self._events = events

    def add(self, kind: str, record: WorkerRecord, message: str, **attributes: str) -> None:
        """Adds an event of a worker. `message` continues a sentence that begins with the worker's name."""
        self._events.add(
            kind,
            f"{worker_name(record)} {message}",
            worker_id=record.worker_id,
            worker_kind=NAMES[record.kind],
            address=record.address,
            **attributes,
        )

    def add_end(self, member: Member, reason: str) -> None:
        """Adds the event of a worker's end: the worker has left if it was told to end, else it is lost."""
        if member.is_leaving and member.record.kind != worker_pb2.WORKER_KIND_LEARNER:
            self.add("worker_left", member.record, "has left")
        else:
            self.add("worker_lost", member.record, f"is lost: {reason}", reason=reason)

    def add_notice(self, member: Member) -> None:
        """Adds the status message of a working reward service when it changes."""
        status = member.record.status
        if status.state == worker_pb2.WORKER_STATE_READY and status.message != member.notice:
            member.notice = status.message
            self._events.add(
                "worker_notice",
                f"{member.name}: {status.message or 'all is well again'}",
                worker_id=member.record.worker_id,
                address=member.record.address,
                notice=status.message,
            )


def missing_message(kinds: Sequence[Kind], timeout_s: float, gap: str) -> str:
    """Describes which kinds of workers did not join in time, and what to do. `gap` says what became of them."""
    *others, last = (f"no {NAMES[kind]}" for kind in kinds)
    names = f"{', '.join(others)} and {last}" if others else last
    return (
        f"{names} registered and loaded within coordinator.worker_timeout_s ({timeout_s:.0f} s)"
        f"{f': {gap}' if gap else ''}. If a worker is loading, see its log, and raise the limit if the worker "
        "needs longer. If a worker is not registered, start it with --coordinator set to this coordinator's address; "
        "if it is running, see its log"
    )
