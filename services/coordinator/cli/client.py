"""The coordinator as the command line calls it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from shoal.errors import DeadlineExceeded, Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub

if TYPE_CHECKING:
    from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

ResultT = TypeVar("ResultT")

CALL_TIMEOUT_S = 15.0
START_TIMEOUT_S = 900.0
"""For `StartRun`, which loads tokenizer and data, and may download them."""
CHECKPOINT_TIMEOUT_S = 3600.0
"""For `SaveCheckpoint`, which waits for the end of a step."""
EVALUATION_TIMEOUT_S = 4 * 3600.0
"""For `Evaluate`, which waits for the end of a step and for every answer."""
WATCH_TIMEOUT_S = 24 * 3600.0
"""One call of `WatchRun`; a longer run is watched by further calls."""
RECONNECTS = 5
"""Tries to go on watching after the stream broke, counted anew with every event."""

ENDED = (pb.RUN_STATE_FINISHED, pb.RUN_STATE_STOPPED, pb.RUN_STATE_FAILED)


@asynccontextmanager
async def coordinator(address: str) -> AsyncIterator["CoordinatorServiceAsyncStub"]:
    """A stub for the time of a block; its calls raise `shoal.errors`."""
    async with connect(address, "shoal.v1.CoordinatorService") as channel:
        yield CoordinatorServiceStub(channel)


def ask(address: str, call: "Callable[[CoordinatorServiceAsyncStub], Awaitable[ResultT]]") -> ResultT:
    """Makes one call from code that is not asynchronous."""

    async def asking() -> ResultT:
        async with coordinator(address) as stub:
            return await call(stub)

    try:
        return asyncio.run(asking())
    except Unavailable as error:
        raise Unavailable(f"no coordinator answers at {address}; is it running there? ({error.message})") from None


async def follow(
    stub: "CoordinatorServiceAsyncStub", run_id: str, after_sequence: int = 0
) -> AsyncIterator[pb.RunEvent]:
    """A run's events after one, those to come included, until the run ends.

    Goes on after a broken stream where it ended. Raises `Unavailable` when the coordinator stays away.
    """
    failures = 0
    while True:
        request = pb.WatchRunRequest(run_id=run_id, after_sequence=after_sequence)
        try:
            async for response in stub.WatchRun(request, timeout=WATCH_TIMEOUT_S):
                after_sequence = response.event.sequence
                failures = 0
                yield response.event
            return
        except DeadlineExceeded:
            continue
        except Unavailable:
            failures += 1
            if failures > RECONNECTS:
                raise
            await asyncio.sleep(min(5.0, 0.5 * 2**failures))
