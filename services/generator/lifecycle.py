"""From IDLE to a loaded engine, and to its end."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.generator.engine import Engine
from services.generator.loading import WeightLoader
from services.generator.requests import Requests
from shoal.config.load import config_digest
from shoal.config.run import RunConfig
from shoal.errors import Aborted, FailedPrecondition, ShoalError
from shoal.rollout import WeightVersion
from shoal.telemetry import metrics, names
from shoal.v1 import worker_pb2
from shoal.worker.renewal import Renewal

log = logging.getLogger(__name__)

StartEngine = Callable[[RunConfig], Awaitable[Engine]]

_LAST_GRACE_S = 20.0


@dataclass
class Running:
    """An engine with what is kept about it."""

    engine: Engine
    requests: Requests
    weights: WeightLoader


class Lifecycle:
    """Which run the generator serves, with which engine, and in which state."""

    def __init__(self, start_engine: StartEngine, renewal: Renewal) -> None:
        self._start_engine = start_engine
        self._renewal = renewal
        self._run_id = ""
        self._config: RunConfig | None = None
        self._digest = ""
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._running: Running | None = None
        self._failure = ""

    def configure(self, run_id: str, config: RunConfig) -> None:
        """Starts the engine for a run, beside the event loop; the same again changes nothing.

        Another run takes the engine over if it asks for the same one. If it asks for another, or the process is about
        to start over for one, raises `Unavailable` (STARTING_OVER).
        """
        digest = config_digest(config)
        has_engine = self._starting is not None or self._running is not None
        is_ending = self._running is not None and bool(self._failure)
        if is_ending or (has_engine and not self._renewal.is_due and (run_id, digest) == (self._run_id, self._digest)):
            return
        if self._renewal.is_due or (
            has_engine and self._config is not None and _engine_part(config) != _engine_part(self._config)
        ):
            starting_over = self._renewal.begin(
                f"the generator holds the engine of run {self._run_id}, whose [model], [generator] or "
                f"sampling.stop_strings settings differ from those of run {run_id}"
            )
            if self._running is not None:
                self._running.requests.drop_all(Aborted(f"run {run_id} took the generator over", reason="OTHER_RUN"))
            raise starting_over
        earlier = self._run_id
        self._run_id, self._config, self._digest, self._failure = run_id, config, digest, ""
        if self._running is not None:
            log.info("engine taken over", extra={"run_id": run_id, "from_run_id": earlier})
            self._running.requests.drop_all(Aborted(f"run {run_id} took the generator over", reason="OTHER_RUN"))
            self._starting = asyncio.create_task(self._take_over(self._running, f"run {run_id} began"))
        elif self._starting is None:
            self._starting = asyncio.create_task(self._start(config))

    async def _take_over(self, running: Running, because: str) -> None:
        try:
            await running.weights.reset(because)
        finally:
            self._starting = None

    async def _start(self, config: RunConfig) -> None:
        try:
            engine = await self._start_engine(config)
        except ShoalError as error:
            self._failure = error.message
            log.error("engine not started", extra={"error": error.message})
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            log.exception("engine not started")
        else:
            requests = Requests(engine, capacity=config.generator.max_num_seqs + config.generator.max_queued_requests)

            def drop_requests(version: WeightVersion) -> None:
                requests.drop_all(Aborted(f"the run was restored: weights {version} are coming", reason="RESTORED"))

            weights = WeightLoader(engine, keep_stale_kv=config.generator.keep_stale_kv, on_new_attempt=drop_requests)
            self._running = Running(engine, requests, weights)
            self._watching = asyncio.create_task(self._watch(engine))
        finally:
            self._starting = None

    async def _watch(self, engine: Engine) -> None:
        """Ends the process when the engine has died: its successor is a new process."""
        cause = await engine.died()
        if self._renewal.is_due:
            return
        self._failure = f"the engine has died: {cause}"
        log.critical("engine died; the generator ends", extra={"cause": cause, "run_id": self._run_id})
        if self._running is not None:
            self._running.requests.drop_all(Aborted("the generator's engine has died", reason="ENGINE_DEAD"))
        # In case that something of the engine blocks the orderly end.
        last = threading.Timer(_LAST_GRACE_S, os._exit, (1,))
        last.daemon = True
        last.start()
        os.kill(os.getpid(), signal.SIGTERM)

    @property
    def running(self) -> Running:
        """The engine. Raises `FailedPrecondition` while there is none."""
        if self._running is None or self._failure:
            status = self.status()
            state = worker_pb2.WorkerState.Name(status.state).removeprefix("WORKER_STATE_")
            because = f": {status.message}" if status.message else ""
            raise FailedPrecondition(f"the generator is {state}{because}", reason="NOT_CONFIGURED")
        return self._running

    @property
    def num_weight_ranks(self) -> int:
        """Ranks that the engine takes up in a broadcast group; 0 before it is configured."""
        if self._config is None:
            return 0
        return self._config.generator.tensor_parallel_size * self._config.generator.pipeline_parallel_size

    @property
    def current(self) -> Running | None:
        """The engine, if there is one."""
        return self._running

    def status(self) -> worker_pb2.WorkerStatus:
        """State and load."""
        state, message = self._state()
        load = worker_pb2.WorkerLoad()
        if self._config is not None and self._running is not None:
            in_flight = self._running.requests.num_in_flight
            capacity = self._config.generator.max_num_seqs
            load = worker_pb2.WorkerLoad(
                num_running=min(in_flight, capacity), num_waiting=max(in_flight - capacity, 0), capacity=capacity
            )
            metrics.gauge(names.GENERATOR_RUNNING).set(load.num_running)
            metrics.gauge(names.GENERATOR_WAITING).set(load.num_waiting)
        return worker_pb2.WorkerStatus(
            state=state, message=message, run_id=self._run_id, config_digest=self._digest, load=load
        )

    def _state(self) -> tuple[worker_pb2.WorkerState.ValueType, str]:
        if self._failure:
            return worker_pb2.WORKER_STATE_FAILED, self._failure
        if self._starting is not None:
            return worker_pb2.WORKER_STATE_LOADING, ""
        if self._running is None:
            return worker_pb2.WORKER_STATE_IDLE, ""
        weights = self._running.weights
        if weights.is_stale:
            return worker_pb2.WORKER_STATE_STALE, weights.stale_because
        if weights.is_held:
            return worker_pb2.WORKER_STATE_PAUSED, "paused by PauseGeneration"
        return worker_pb2.WORKER_STATE_READY, ""

    async def close(self) -> None:
        """Ends the engine, also one that is still starting."""
        for task in (self._starting, self._watching):
            if task is not None:
                task.cancel()
        if self._running is not None:
            self._running.requests.drop_all(Aborted("the generator is shutting down", reason="SHUTTING_DOWN"))
            await self._running.engine.close()


def _engine_part(config: RunConfig) -> tuple[object, ...]:
    """What of a configuration the engine is made from."""
    return config.model, config.generator, config.max_model_len, bool(config.sampling.stop_strings)
