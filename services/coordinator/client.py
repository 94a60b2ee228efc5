"""A client of CoordinatorService, with one blocking call for each rpc, and the events of a run as a stream."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.errors import DeadlineExceeded, Unavailable
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.unreachable import why_unreachable
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub

if TYPE_CHECKING:
    from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

ResultT = TypeVar("ResultT")

CALL_TIMEOUT_S = 15.0
START_TIMEOUT_S = 900.0
"""Timeout of `StartRun`, which loads the tokenizer and data, and may download both."""
RESUME_TIMEOUT_S = 180.0
"""Timeout of `ResumeRun`, which waits until the reward services have reloaded the code of custom verifiers."""
CHECKPOINT_TIMEOUT_S = 3600.0
"""Timeout of `SaveCheckpoint`. The call waits for the end of a step."""
EVALUATION_TIMEOUT_S = 4 * 3600.0
"""Timeout of `Evaluate`. The call waits for the end of a step and for every answer."""
PROFILE_TIMEOUT_S = 4 * 3600.0
"""Timeout of `ProfileRun`. The call waits for the end of the recorded steps, also while the run is paused."""
WATCH_TIMEOUT_S = 24 * 3600.0
"""Timeout of one call of `WatchRun`. Further calls watch a longer run."""
RECONNECT_S = 180.0
"""Longest wait for a coordinator that restarts."""
_MAX_PAUSE_S = 3.0


@asynccontextmanager
async def coordinator(
    address: str, credentials: Credentials | None = None
) -> AsyncIterator["CoordinatorServiceAsyncStub"]:
    """Opens a stub for the duration of a block.

    Calls of the stub raise the errors of `shoal.errors`. The default of `credentials` comes from the environment
    variables SHOAL_TLS_DIR, SHOAL_TOKEN_FILE and SHOAL_TOKEN.
    """
    if credentials is None:
        tls_dir = os.environ.get("SHOAL_TLS_DIR")
        credentials = Credentials.of_client(Path(tls_dir) if tls_dir else None)
    async with connect(address, "shoal.v1.CoordinatorService", credentials) as channel:
        yield CoordinatorServiceStub(channel)


async def follow(
    stub: "CoordinatorServiceAsyncStub", run_id: str, after_sequence: int = 0
) -> AsyncIterator[pb.RunEvent]:
    """Yields a run's events after `after_sequence`, past and future, until the run ends.

    Reopens a broken stream after its last event. Raises `Unavailable` when the coordinator does not come back.
    """
    patience = Patience()
    while True:
        request = pb.WatchRunRequest(run_id=run_id, after_sequence=after_sequence, batches=True)
        try:
            async for response in stub.WatchRun(request, timeout=WATCH_TIMEOUT_S):
                patience = Patience()
                for event in response.events or (response.event,):
                    after_sequence = event.sequence
                    yield event
            return
        except DeadlineExceeded:
            continue
        except Unavailable as error:
            await patience.wait(error)


async def patiently(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Makes a call that is safe to repeat. Repeats the call while a restarting coordinator does not answer."""
    patience = Patience()
    while True:
        try:
            return await call()
        except Unavailable as error:
            await patience.wait(error)


class Patience:
    """Growing pauses between calls to a coordinator that may be restarting."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._pause_s = 0.5

    async def wait(self, error: Unavailable) -> None:
        """Pauses before the next call. Raises the error when the coordinator has been away for RECONNECT_S."""
        if time.monotonic() - self._began_s > RECONNECT_S:
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s)


def start_run(address: str, request: pb.StartRunRequest) -> pb.Run:
    """Starts or resumes a run."""
    return _call(address, lambda stub: stub.StartRun(request, timeout=START_TIMEOUT_S)).run


def get_run(address: str, run_id: str) -> pb.Run:
    """Describes a run. If `run_id` is empty, this is the active run, or else the newest run."""
    request = pb.GetRunRequest(run_id=run_id)
    return _call(address, lambda stub: stub.GetRun(request, timeout=CALL_TIMEOUT_S)).run


def list_runs(address: str, limit: int) -> pb.ListRunsResponse:
    """Lists at most `limit` runs, newest first."""
    request = pb.ListRunsRequest(page_size=limit)
    return _call(address, lambda stub: stub.ListRuns(request, timeout=CALL_TIMEOUT_S))


def pause_run(address: str, run_id: str) -> pb.Run:
    """Pauses a run."""
    request = pb.PauseRunRequest(run_id=run_id)
    return _call(address, lambda stub: stub.PauseRun(request, timeout=CALL_TIMEOUT_S)).run


def resume_run(address: str, run_id: str) -> pb.Run:
    """Continues a paused run."""
    request = pb.ResumeRunRequest(run_id=run_id)
    return _call(address, lambda stub: stub.ResumeRun(request, timeout=RESUME_TIMEOUT_S)).run


def stop_run(address: str, run_id: str, *, drain: bool) -> pb.Run:
    """Ends a run with a checkpoint. With `drain` the run first trains on the groups in flight."""
    request = pb.StopRunRequest(run_id=run_id, mode=pb.STOP_MODE_DRAIN if drain else pb.STOP_MODE_NOW)
    return _call(address, lambda stub: stub.StopRun(request, timeout=CALL_TIMEOUT_S)).run


def update_run_config(address: str, request: pb.UpdateRunConfigRequest) -> pb.UpdateRunConfigResponse:
    """Changes the configuration of an active run."""
    return _call(address, lambda stub: stub.UpdateRunConfig(request, timeout=CALL_TIMEOUT_S))


def save_checkpoint(address: str, run_id: str) -> pb.SaveCheckpointResponse:
    """Writes a checkpoint at the next step boundary, and waits until it is written."""
    request = pb.SaveCheckpointRequest(run_id=run_id)
    return _call(address, lambda stub: stub.SaveCheckpoint(request, timeout=CHECKPOINT_TIMEOUT_S))


def evaluate(address: str, run_id: str) -> pb.EvaluateResponse:
    """Evaluates the policy at the next step boundary, and waits for the result."""
    request = pb.EvaluateRequest(run_id=run_id)
    return _call(address, lambda stub: stub.Evaluate(request, timeout=EVALUATION_TIMEOUT_S))


def profile_run(address: str, run_id: str, num_steps: int) -> pb.ProfileRunResponse:
    """Records the next train steps with the learner's profiler, and waits for the trace files."""
    request = pb.ProfileRunRequest(run_id=run_id, num_steps=num_steps)
    return _call(address, lambda stub: stub.ProfileRun(request, timeout=PROFILE_TIMEOUT_S))


def list_rollouts(address: str, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
    """Lists a page of a run's groups."""
    return _call(address, lambda stub: stub.ListRollouts(request, timeout=CALL_TIMEOUT_S))


def list_workers(address: str) -> pb.ListWorkersResponse:
    """Lists the registered workers."""
    return _call(address, lambda stub: stub.ListWorkers(pb.ListWorkersRequest(), timeout=CALL_TIMEOUT_S))


def _call(address: str, call: "Callable[[CoordinatorServiceAsyncStub], Awaitable[ResultT]]") -> ResultT:
    """Makes one call from synchronous code."""

    async def call_once() -> ResultT:
        async with coordinator(address) as stub:
            return await call(stub)

    try:
        return asyncio.run(call_once())
    except Unavailable as error:
        uses_tls = bool(os.environ.get("SHOAL_TLS_DIR"))
        raise Unavailable(why_unreachable(address, error.message, uses_tls=uses_tls)) from None
