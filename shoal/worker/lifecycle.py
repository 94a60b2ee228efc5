"""Lifecycle of a worker: idempotent configuration, states, refusals, status.

IDLE: not configured; `Configure` begins a load. LOADING: loading in the background, after `Configure` has returned.
READY: the load succeeded. FAILED: either the load failed, and `Configure` begins another load; or the worker cannot
continue, and its process ends. LEAVING: the process was told to end and finishes its work. It refuses `Configure`.

A repeat with the same configuration changes nothing while the worker is LOADING or READY. For another configuration the
service either loads within the process, or restarts the process (shoal/worker/reexec.py).
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from shoal.config.live import without_at_once
from shoal.config.load import config_digest
from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError, Unavailable
from shoal.v1 import worker_pb2
from shoal.worker.reexec import Reexec

_log = logging.getLogger(__name__)

State: TypeAlias = worker_pb2.WorkerState.ValueType
Progress: TypeAlias = Callable[[str], None]
"""Takes a description of the current work. The working thread calls it."""

_IDLE, _LOADING = worker_pb2.WORKER_STATE_IDLE, worker_pb2.WORKER_STATE_LOADING
_READY, _FAILED = worker_pb2.WORKER_STATE_READY, worker_pb2.WORKER_STATE_FAILED
_LEAVING = worker_pb2.WORKER_STATE_LEAVING


class Lifecycle:
    """The run that a worker serves, and its state. Methods belong to one event loop, except `fail` and `progress`."""

    def __init__(self, worker: str, reexec: Reexec | None = None) -> None:
        """`worker` names the service in messages, such as "the learner". Without `reexec` the worker cannot restart."""
        self._worker = worker
        self._reexec = reexec
        self._state: State = _IDLE
        self._message = ""
        self._run_id = ""
        self._digest = ""
        self._read_digest = ""
        """The digest of the fields that workers read: other fields, such as checkpoint.every_steps, need no load."""
        self._loading: asyncio.Task[None] | None = None
        self._is_ending = False
        self._ending = threading.Lock()

    @property
    def state(self) -> State:
        """IDLE, LOADING, READY, FAILED or LEAVING."""
        return self._state

    @property
    def run_id(self) -> str:
        """The run that the worker is configured for; empty before the first configuration."""
        return self._run_id

    @property
    def is_ending(self) -> bool:
        """Whether the process is about to end or to restart."""
        return self._is_ending

    @property
    def can_restart(self) -> bool:
        """Whether `restart` is allowed."""
        return self._reexec is not None

    @property
    def restarts_by_launcher(self) -> bool:
        """Whether the process is about to end with the exit code that makes its launcher start it again."""
        return self._reexec is not None and self._reexec.is_left_to_launcher

    def is_configured(self, run_id: str, config: RunConfig) -> bool:
        """Returns whether the worker already has this configuration, so that Configure has nothing to do.

        Raises `Unavailable`: STARTING_OVER while the process restarts, ENDING while it ends.
        """
        is_same = (run_id, config_digest(without_at_once(config))) == (self._run_id, self._read_digest)
        if self._reexec is not None and self._reexec.is_due:
            raise self._reexec.refusal()
        if self._state == _LEAVING or (self._is_ending and not is_same):
            raise self._is_ending_error()
        return is_same and (self._is_ending or self._state in (_LOADING, _READY))

    def load(self, run_id: str, config: RunConfig, work: Callable[[], Awaitable[None]], *, message: str) -> None:
        """Takes a configuration and loads it in the background: LOADING now, READY or FAILED when `work` ends.

        Cancels an earlier load, and waits for its cleanup before `work`. `message` describes the work in the status.
        """
        earlier = self._loading
        if earlier is not None:
            earlier.cancel()
        self.adopt(run_id, config)
        self._state, self._message = _LOADING, message
        self._loading = asyncio.create_task(self._load(work, earlier))

    def adopt(self, run_id: str, config: RunConfig) -> None:
        """Takes a configuration that needs no other load than the current load, which may still be running."""
        self._run_id, self._digest = run_id, config_digest(config)
        self._read_digest = config_digest(without_at_once(config))

    async def _load(self, work: Callable[[], Awaitable[None]], earlier: "asyncio.Task[None] | None") -> None:
        await _wait_for_end(earlier)
        try:
            await work()
        except ShoalError as error:
            _log.error("loading failed", extra={"run_id": self._run_id, "error": error.message})
            self._end_load(_FAILED, error.message)
        except Exception as error:
            # Nobody awaits this task: without this, LOADING would last forever.
            _log.exception("loading failed", extra={"run_id": self._run_id})
            self._end_load(_FAILED, f"{type(error).__name__}: {error}")
        else:
            self._end_load(_READY, "")

    def progress(self, message: str) -> None:
        """Describes long work in the status, until the work has ended. Any thread may call it."""
        with self._ending:
            if self._state in (_LOADING, _READY, _LEAVING):
                self._message = message

    def _end_load(self, state: State, message: str) -> None:
        with self._ending:
            if self._state == _LOADING:  # Else `fail` came first, and its reason stays.
                self._state, self._message = state, message

    def fail(self, reason: str) -> None:
        """Ends the process as FAILED: the worker cannot continue. The first reason counts. Any thread may call it."""
        with self._ending:
            if self._is_ending:
                return
            self._is_ending = True
            is_told_to_end = self._state == _LEAVING
            self._state, self._message = _FAILED, reason
        # The supervisor of `shoal train` shows the field `error` of the last error in a log.
        _log.critical("worker ends", extra={"run_id": self._run_id, "error": reason})
        # Send it only once: a second signal would end the process at once, or would come too late to be handled.
        if not is_told_to_end:
            os.kill(os.getpid(), signal.SIGTERM)

    def leave(self) -> bool:
        """Shows LEAVING, because the process was told to end. Returns False if it already ends or restarts by
        itself."""
        with self._ending:
            if self._is_ending:
                return False
            self._state = _LEAVING
        return True

    def restart(self, because: str) -> Unavailable:
        """Ends the process so that its program restarts for another run. Returns the error to raise.

        Later errors of the loaded run are ignored, since that run is over.
        """
        assert self._reexec is not None, "ask can_restart first"
        with self._ending:
            if self._is_ending and not self._reexec.is_due:
                return self._is_ending_error()
            self._is_ending = True
        return self._reexec.begin(because)

    def _is_ending_error(self) -> Unavailable:
        message = f": {self._message}" if self._message else ""
        return Unavailable(f"{self._worker} is ending{message}", reason=ErrorReason.ENDING)

    def not_ready(self) -> FailedPrecondition:
        """Returns the error for a call that needs the state READY."""
        state = worker_pb2.WorkerState.Name(self._state).removeprefix("WORKER_STATE_")
        message = f": {self._message}" if self._message else ""
        return FailedPrecondition(f"{self._worker} is {state}, not READY{message}", reason=ErrorReason.NOT_READY)

    def status(
        self, load: worker_pb2.WorkerLoad, *, loaded: tuple[State, str] | None = None
    ) -> worker_pb2.WorkerStatus:
        """Returns the status message. `loaded`, if given, replaces state and message if the state is READY."""
        state, message = loaded if loaded and self._state == _READY else (self._state, self._message)
        return worker_pb2.WorkerStatus(
            state=state, message=message, run_id=self._run_id, config_digest=self._digest, load=load
        )

    async def close(self) -> None:
        """Cancels a load and waits for its cleanup. Later errors are ignored."""
        with self._ending:
            self._is_ending = True
        if self._loading is not None:
            self._loading.cancel()
        await _wait_for_end(self._loading)


async def _wait_for_end(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        await asyncio.wait([task])


def silent(description: str) -> None:
    """Shows nothing, for ranks whose status nobody sees."""
