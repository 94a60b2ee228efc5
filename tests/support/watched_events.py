"""The events that a watcher of a log gets."""

from collections.abc import AsyncIterator

from services.coordinator.store.events import EventLog
from shoal.v1 import coordinator_pb2 as pb


async def watched(log: EventLog, after_sequence: int = 0, *, batches: bool = False) -> AsyncIterator[pb.RunEvent]:
    """Yields the events of a log as its watchers get them, one by one."""
    async for response in log.watch(after_sequence, batches=batches):
        message = pb.WatchRunResponse.FromString(response)
        assert message.HasField("event") != batches, message
        assert bool(message.events) == batches, message
        for event in message.events or [message.event]:
            yield event


def past(log: EventLog) -> list[pb.RunEvent]:
    """Returns the events of a log so far, those included that wait for a full disk."""
    pages = log._pages
    held = [pages._in_memory.get(number) or pages._read(number) for number in range(len(pages))]
    return [event for page in held for each in page.events for event in pb.WatchRunResponse.FromString(each).events]
