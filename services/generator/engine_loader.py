"""Starts the engine of a generator, lets the next run take it over, and ends it."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from services.generator.adapter_settings import adapter_config, num_slots
from services.generator.engine import Engine
from services.generator.requests import Requests
from services.generator.vllm_sampling import fits_masks
from services.generator.weight_loader import WeightLoader
from shoal.config.live import without_at_once
from shoal.config.run import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, ShoalError, Unavailable
from shoal.rollout import WeightVersion
from shoal.telemetry import metrics, names
from shoal.v1 import worker_pb2
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec

log = logging.getLogger(__name__)

StartEngine = Callable[[RunConfig], Awaitable[Engine]]

_LAST_GRACE_S = 20.0
"""The time from the engine's death until the process ends, even if work still runs in the process."""


@dataclass
class Running:
    """An engine with its requests and its weights."""

    engine: Engine
    requests: Requests
    weights: WeightLoader


class EngineLoader:
    """Loads the engine that a configuration asks for. All methods belong to one event loop."""

    def __init__(self, start_engine: StartEngine, reexec: Reexec) -> None:
        self._start_engine = start_engine
        self._lifecycle = Lifecycle("the generator", reexec)
        self._config: RunConfig | None = None
        self._running: Running | None = None
        self._watching: asyncio.Task[None] | None = None

    def configure(self, run_id: str, config: RunConfig) -> None:
        """Starts the engine for a run, outside the event loop. A repeat with the same configuration changes nothing.

        Another run takes over the engine if this run asks for an equal engine. Raises `Unavailable` (STARTING_OVER,
        ENDING) if the run asks for a different engine, or if the process is about to end or to restart.
        """
        if self._lifecycle.is_configured(run_id, config):
            return
        earlier, is_loading = self._lifecycle.run_id, self._lifecycle.state == worker_pb2.WORKER_STATE_LOADING
        if (is_loading or self._running) and self._config and _engine_part(config) != _engine_part(self._config):
            refusal = self._lifecycle.restart(
                f"the generator serves run {earlier}, whose [model], [generator], sampling.stop_strings, "
                "evaluation.stop_strings, sampling.top_k, run.deterministic or run.num_threads settings differ from "
                f"the settings of run {run_id}"
            )
            self._drop_requests(f"run {run_id} took the generator over", ErrorReason.OTHER_RUN)
            raise refusal
        self._config = config
        if self._running is not None:
            log.info("engine taken over", extra={"run_id": run_id, "from_run_id": earlier})
            self._drop_requests(f"run {run_id} took the generator over", ErrorReason.OTHER_RUN)
        if is_loading:
            # The engine that starts, or that forgets the weights of an earlier run, serves this run as well.
            self._lifecycle.adopt(run_id, config)
        elif (running := self._running) is not None:
            self._lifecycle.load(
                run_id, config, lambda: running.weights.reset(f"run {run_id} began"), message="taking the engine over"
            )
        else:
            self._lifecycle.load(run_id, config, lambda: self._start(config), message="starting the engine")

    async def _start(self, config: RunConfig) -> None:
        try:
            engine = await self._start_engine(config)
        except Unavailable as error:
            if error.reason == ErrorReason.ENGINE_DEAD:
                self._end_process(error.message)
            raise

        def drop_requests(version: WeightVersion) -> None:
            self._drop_requests(f"the run was restored; waiting for weights {version}", ErrorReason.RESTORED)

        weights = WeightLoader(engine, keep_stale_kv=config.generator.keep_stale_kv, on_new_attempt=drop_requests)
        capacity = config.generator.max_num_seqs + config.generator.max_queued_requests
        requests = Requests(engine, capacity=capacity, while_paused=weights.while_paused)
        self._running = Running(engine, requests, weights)
        self._watching = asyncio.create_task(self._watch(engine))

    def _drop_requests(self, because: str, reason: ErrorReason) -> None:
        if self._running is not None:
            self._running.requests.drop_all(Aborted(because, reason=reason))

    async def _watch(self, engine: Engine) -> None:
        """Ends the process when the engine has died. Only a new process can start another engine."""
        cause = await engine.died()
        if self._lifecycle.is_ending:
            return
        self._end_process(f"the engine has died: {cause}")
        self._drop_requests("the generator's engine has died", ErrorReason.ENGINE_DEAD)

    def _end_process(self, reason: str) -> None:
        """Ends the process, so that its supervisor starts a new one."""
        log.critical("engine died", extra={"cause": reason})
        # A part of the engine may block the orderly end.
        last = threading.Timer(_LAST_GRACE_S, os._exit, (1,))
        last.daemon = True
        last.start()
        self._lifecycle.fail(reason)

    @property
    def running(self) -> Running:
        """The engine. Raises `FailedPrecondition` while there is no engine."""
        if self._running is None or self._lifecycle.state == worker_pb2.WORKER_STATE_FAILED:
            raise self._lifecycle.not_ready()
        return self._running

    @property
    def current(self) -> Running | None:
        """The engine, or None if there is no engine."""
        return self._running

    @property
    def num_weight_ranks(self) -> int:
        """Number of ranks that the engine has in a broadcast group; 0 before the first configuration."""
        if self._config is None:
            return 0
        return self._config.generator.tensor_parallel_size * self._config.generator.pipeline_parallel_size

    def status(self) -> worker_pb2.WorkerStatus:
        """Returns state and load."""
        if self._config is None or self._running is None:
            return self._lifecycle.status(worker_pb2.WorkerLoad())
        in_flight = self._running.requests.num_in_flight
        capacity = self._config.generator.max_num_seqs
        load = worker_pb2.WorkerLoad(
            num_running=min(in_flight, capacity),
            num_waiting=max(in_flight - capacity, 0),
            capacity=capacity,
            kv_cache_use=self._running.engine.kv_cache_use,
        )
        metrics.gauge(names.GENERATOR_RUNNING).set(load.num_running)
        metrics.gauge(names.GENERATOR_WAITING).set(load.num_waiting)
        if load.HasField("kv_cache_use"):
            metrics.gauge(names.GENERATOR_CACHE_USE).set(load.kv_cache_use)
        return self._lifecycle.status(load, loaded=_loaded_state(self._running.weights))

    async def drain(self, grace_s: float) -> None:
        """Lets completions in flight finish for `grace_s`, but not during a pause, and returns the rest to the caller.

        The generator shows LEAVING, and refuses new groups.
        """
        if self._lifecycle.leave() and self._running is not None:
            weights = self._running.weights
            with suppress(ShoalError):  # The engine may die meanwhile.
                await self._running.requests.drain(0 if weights.is_paused or weights.is_stale else grace_s)

    async def close(self) -> None:
        """Ends the engine, even if it is still starting."""
        if self._watching is not None:
            self._watching.cancel()
        await self._lifecycle.close()
        if self._running is not None:
            self._drop_requests("the generator is shutting down", ErrorReason.SHUTTING_DOWN)
            await self._running.engine.close()


def _engine_part(config: RunConfig) -> tuple[object, ...]:
    supports = config.sampling.top_k, fits_masks(config)
    adapter = (adapter_config(config), num_slots(config)) if config.generator.lora == "adapter" else None
    threads = config.run.deterministic, config.run.num_threads
    generator = without_at_once(config).generator
    return config.model, generator, config.max_model_len, config.has_stop_strings, supports, adapter, threads


def _loaded_state(weights: WeightLoader) -> tuple[worker_pb2.WorkerState.ValueType, str]:
    if weights.is_stale:
        return worker_pb2.WORKER_STATE_STALE, weights.stale_reason
    if weights.is_paused:
        return worker_pb2.WORKER_STATE_PAUSED, "paused by PauseGeneration"
    return worker_pb2.WORKER_STATE_READY, ""
