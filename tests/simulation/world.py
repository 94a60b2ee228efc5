"""The processes of one schedule: a coordinator, workers, an operator. Each can be killed, and starts again."""

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.audit import record_call
from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.run import active_run, runs
from services.coordinator.run.checks.preflight import PreparedInputs, preflight
from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.workers.registry import WorkerRegistry
from services.generator.service import GeneratorService
from shoal.config import RunConfig, dump_config
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub, add_CoordinatorServiceServicer_to_server
from shoal.worker import membership
from shoal.worker.reexec import Program, Reexec
from tests.simulation.network.client import Network
from tests.simulation.network.weather import Weather
from tests.simulation.virtual_time import Process, VirtualLoop
from tests.simulation.workers.engine import SimulatedEngine
from tests.simulation.workers.learner import SimulatedLearner
from tests.simulation.workers.plane import Plane
from tests.simulation.workers.reward import SimulatedReward

COORDINATOR = "coordinator:50050"
RUN = "simulated"
GRACE_S = 60.0

_inputs: dict[str, PreparedInputs] = {}


def _prepared(config: RunConfig, _: float | None = None) -> PreparedInputs:
    """Loads tokenizer and data as `preflight`, once for all schedules that have the same."""
    parts = dump_config(config)
    names = ("model", "data", "evaluation", "reward", "sampling")
    key = json.dumps([parts["run"]["seed"], *(parts[name] for name in names)], sort_keys=True)
    if key not in _inputs:
        _inputs[key] = preflight(config)
    return _inputs[key]


class _Restart(Reexec):
    def __init__(self, slot: "Slot") -> None:
        super().__init__(Program("", (), {}))
        self._slot = slot

    def begin(self, because: str) -> Any:
        if not self.is_due:
            self._because = because
            self._slot.restart_soon()
        return self.refusal()


class Slot:
    """A place for a worker: its process, and the one that takes over when that is killed."""

    def __init__(self, world: "World", kind: str, number: int) -> None:
        self.kind = kind
        self.name = f"{kind}-{number}"
        self.process = Process(self.name)
        self.servicer: Any = None
        self._world = world
        self._keeps_address = world.rng.random() < 0.5
        self._num_starts = 0

    def start(self) -> None:
        """Starts a process, unless one runs."""
        if self._num_starts and self.process.is_alive:
            return
        self._num_starts += 1
        self.process = self._world.process(self.name)
        self._world.watched(self.process, self._main(f"{self.name}-{self._num_starts}"))
        self._world.trace(f"start {self.name}-{self._num_starts}")

    def kill(self, back_after_s: float) -> None:
        self._world.trace(f"kill {self.name}")
        self.process.kill()
        self._world.later(back_after_s, self.start)

    def restart_soon(self) -> None:
        self._world.later(0.5, lambda: self.kill(2.0))

    async def _main(self, worker_id: str) -> None:
        self.servicer = servicer = self._make()
        port = 1000 if self._keeps_address else 1000 + self._num_starts
        address = f"{self.name}:{port}"
        server = RpcServer(listen=address)
        server.add(servicer.add_to_server, servicer, servicer.full_name)
        await server.start()
        await server.set_serving(worker_id, True)
        registered = membership.Membership(
            servicer, worker_id=worker_id, coordinator=COORDINATOR, find_address=lambda: address
        )
        await registered.keep()

    def _make(self) -> Any:
        plane, rng = self._world.plane, random.Random(self._world.rng.random())
        if self.kind == "reward":
            return SimulatedReward(plane, rng)
        if self.kind == "learner":
            return SimulatedLearner(plane, self.process, rng, _Restart(self))

        async def start_engine(config: RunConfig) -> SimulatedEngine:
            await asyncio.sleep(rng.random() * 5)
            return SimulatedEngine(plane, self.process, rng)

        return GeneratorService(start_engine, _Restart(self))


class World:
    def __init__(self, loop: VirtualLoop, folder: Path, seed: object) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/world")
        self.weather = Weather(random.Random(f"{seed}/weather"))
        self.network = Network(self.weather)
        self.plane = Plane()
        self.events: list[str] = []
        """What happened, with its times: the trace of the schedule."""
        self.slots: list[Slot] = []
        self._processes: list[Process] = []
        """All that ever ran: a task of a killed one that was collected would run its `finally`."""
        self.coordinator = Process("coordinator")
        self.runs: Runs | None = None
        self.registry = WorkerRegistry()
        self.buffers: list[PacingBuffer[Any]] = []
        """Of the coordinator that runs."""
        self.operator = self.process("operator")
        self._folder = folder
        self.data_dir = folder / "runs"
        self.data_dir.mkdir(parents=True)
        self._num_coordinators = 0

    def process(self, name: str) -> Process:
        self._processes.append(Process(name))
        return self._processes[-1]

    def watched(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        """Runs the main task of a process, which ends with an error only if something is wrong."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.plane.report(f"{process.name} ended: {error!r}")

        process.create_task(work).add_done_callback(ended)

    def trace(self, what: str) -> None:
        self.events.append(f"{self.loop.time():.6f} {what}")

    def later(self, delay_s: float, work: Callable[[], object]) -> None:
        """Does something in a while, whoever is killed meanwhile."""
        from contextvars import Context

        self.loop.call_later(delay_s, work, context=Context())

    def add(self, kind: str, number: int) -> None:
        self.slots.append(Slot(self, kind, number))
        self.slots[-1].start()

    def of_kind(self, kind: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.kind == kind]

    # The coordinator.

    def start_coordinator(self) -> None:
        """Starts a coordinator on the data folder, unless one runs."""
        if self._num_coordinators and self.coordinator.is_alive:
            return
        self._num_coordinators += 1
        self.coordinator = self.process("coordinator")
        self.buffers = []
        self.trace("start coordinator")
        self.watched(self.coordinator, self._serve())

    async def _serve(self) -> None:
        """Does what `services.coordinator.__main__` does."""
        self.registry = WorkerRegistry(self.loop.time)
        self.runs = Runs(self.data_dir, self.registry, name="this")
        self.runs.take_up()
        server = RpcServer(listen=COORDINATOR, audit=partial(record_call, self.runs))
        servicer = CoordinatorService(self.runs, self.registry)
        server.add(add_CoordinatorServiceServicer_to_server, servicer, "shoal.v1.CoordinatorService")
        await server.start()
        await self.registry.expire_forever()

    def kill_coordinator(self, back_after_s: float) -> None:
        """Kills the coordinator. Its files stay as they are: the next one gets a copy, without locks and open files."""
        if not self.coordinator.is_alive:
            return
        self.trace("kill coordinator")
        self.coordinator.kill()
        left = self._folder / f"left-{self._num_coordinators}"
        self.data_dir.rename(left)
        shutil.copytree(left, self.data_dir)
        self._tear()
        self.later(back_after_s, self.start_coordinator)

    def _tear(self) -> None:
        """Leaves what was being written half done, now and then."""
        for name in ("events.jsonl", "metrics.jsonl"):
            path = self.data_dir / RUN / name
            if path.exists() and self.rng.random() < 0.3:
                with path.open("a") as file:
                    file.write('{"step": 1, "sequ')
        for path in sorted((self.data_dir / RUN / "segments").glob("*")):
            if self.rng.random() < 0.3:
                with path.open("ab") as file:
                    file.write(self.rng.randbytes(20))

    async def end_coordinator(self) -> None:
        """Ends the coordinator as SIGTERM does, and starts it again."""
        if not self.coordinator.is_alive or self.runs is None:
            return
        self.trace("end coordinator")
        process, closing = self.coordinator, self.coordinator.create_task(self.runs.close(GRACE_S))
        await asyncio.wait([closing], timeout=GRACE_S + 60)
        if process.is_alive:
            self.kill_coordinator(1.0)

    # The operator.

    def call(self, method: str, request: Any, timeout_s: float = 30.0) -> "asyncio.Task[Any]":
        async def call() -> Any:
            async with connect(COORDINATOR, "shoal.v1.CoordinatorService") as channel:
                return await getattr(CoordinatorServiceStub(channel), method)(request, timeout=timeout_s)

        return self.operator.create_task(call())

    def start_run(self, config: dict[str, Any] | None) -> Any:
        struct = json_format.ParseDict(config, Struct()) if config else None
        return self.call("StartRun", pb.StartRunRequest(config=struct, run_id=RUN, resume=config is None))

    def close(self) -> None:
        """Ends everything without letting any of it do more."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            for task in list(process.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())


def _close(work: Any) -> None:
    """Ends a coroutine that waits, whatever it still tries to do."""
    for _ in range(20):
        try:
            work.close()
        except RuntimeError:  # It has waited for something once more.
            continue
        except BaseException:
            pass
        return


async def _watch_nothing() -> None:
    """Stands for the probe of the loop's lag, of which a virtual clock has none."""


@contextlib.contextmanager
def simulated(world: World) -> Any:
    """Lets the code of all processes use the world's network, and prepared inputs."""

    class Counted(PacingBuffer[Any]):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            world.buffers.append(self)

    with (
        mock.patch.object(grpc.aio, "insecure_channel", world.network.channel),
        mock.patch.object(grpc.aio, "server", world.network.server),
        mock.patch("shoal.rpc.server.watch_lag", _watch_nothing),
        mock.patch.object(asyncio, "open_connection", world.network.open_connection),
        mock.patch.object(runs, "preflight", _prepared),
        mock.patch.object(active_run, "preflight", _prepared),
        mock.patch("services.coordinator.run.attempt.PacingBuffer", Counted),
        mock.patch.object(membership, "_POLL_S", 1.0),  # Workers that look at themselves would be most of it.
    ):
        yield
