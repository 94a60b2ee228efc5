"""A coordinator over real gRPC with scripted workers around it, for contract tests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorServicer
from services.coordinator.workers.registry import WorkerRegistry
from shoal.errors import DeadlineExceeded
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc, worker_pb2
from tests.support.loopback import ADD_TO_SERVER, COORDINATOR
from tests.support.scripted_workers import Plane, ScriptedGenerator, ScriptedLearner, ScriptedReward, serve_worker
from tests.support.waiting import PATIENCE_S

NUM_SHOWN = 20
"""Last events of a run that did not come so far in time."""


class Cluster:
    """A coordinator with scripted workers around it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.plane = Plane()
        self.learner = ScriptedLearner(self.plane)
        self._servers: list[RpcServer] = []
        self._beats: dict[str, asyncio.Task[None]] = {}
        self.registry = WorkerRegistry()
        self.runs = Runs(data_dir, self.registry)
        self._expiring: asyncio.Task[None]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, data_dir: Path) -> AsyncIterator[Self]:
        """Runs one whose runs are in a new folder."""
        data_dir.mkdir()
        cluster = cls(data_dir)
        await cluster.open()
        try:
            yield cluster
        finally:
            await cluster.close()

    async def open(self) -> None:
        server = RpcServer(listen="127.0.0.1:0")
        server.add(
            ADD_TO_SERVER[COORDINATOR],
            CoordinatorServicer(self.runs, self.registry),
            COORDINATOR,
        )
        await server.start()
        self._servers.append(server)
        self.address = f"127.0.0.1:{server.port}"
        self.stub = coordinator_pb2_grpc.CoordinatorServiceStub(connect(self.address, COORDINATOR))
        self._expiring = asyncio.create_task(self.registry.expire_forever())

    async def add(self, kind: worker_pb2.WorkerKind.ValueType, servicer: Any, worker_id: str) -> RpcServer:
        server, beat = await serve_worker(self.address, kind, servicer, worker_id)
        self._servers.append(server)
        self._beats[worker_id] = beat
        return server

    async def add_all(self, *generators: ScriptedGenerator, rewards: tuple[ScriptedReward, ...] = ()) -> None:
        await self.add(worker_pb2.WORKER_KIND_LEARNER, self.learner, "learner-0")
        for index, reward in enumerate(rewards or (ScriptedReward(),)):
            await self.add(worker_pb2.WORKER_KIND_REWARD, reward, f"reward-{index}")
        for index, generator in enumerate(generators):
            await self.add(worker_pb2.WORKER_KIND_GENERATOR, generator, f"generator-{index}")

    async def kill(self, server: RpcServer, worker_id: str) -> None:
        """Ends a worker as kill -9 does: its connections break, its heartbeats stop."""
        self._beats[worker_id].cancel()
        await server.stop(0)

    async def start(self, config: dict[str, Any], run_id: str = "", resume: bool = False) -> pb.Run:
        struct = None if resume else json_format.ParseDict(config, Struct())
        request = pb.StartRunRequest(config=struct, run_id=run_id, resume=resume)
        return (await self.stub.StartRun(request, timeout=60)).run

    async def run(self) -> pb.Run:
        return (await self.stub.GetRun(pb.GetRunRequest(), timeout=60)).run

    async def until(self, condition: Callable[[pb.RunEvent], bool], timeout_s: float = PATIENCE_S) -> list[pb.RunEvent]:
        """Returns the newest run's events up to the first that meets a condition, or to the end. A run that comes to
        neither in time fails the test, with its state and its last events."""
        seen = []
        try:
            async for response in self.stub.WatchRun(pb.WatchRunRequest(), timeout=timeout_s):
                seen.append(response.event)
                if condition(response.event):
                    break
        except DeadlineExceeded:
            run = await self.run()
            last = "".join(f"\n  {event.kind}: {event.message}" for event in seen[-NUM_SHOWN:])
            raise AssertionError(
                f"after {timeout_s:g} s the run is {pb.RunState.Name(run.state)} at step {run.policy_version}"
                f" ({run.message or 'no message'}); the last of its {len(seen)} events:{last}"
            ) from None
        return seen

    async def end(self, timeout_s: float = PATIENCE_S) -> tuple[pb.Run, list[pb.RunEvent]]:
        """Waits until the newest run has ended; returns it and all its events."""
        events = await self.until(lambda _: False, timeout_s)
        return await self.run(), events

    async def groups(self) -> list[pb.RolloutGroup]:
        groups: list[pb.RolloutGroup] = []
        token = ""
        while True:
            page = await self.stub.ListRollouts(pb.ListRolloutsRequest(page_size=7, page_token=token), timeout=60)
            groups += page.groups
            token = page.next_page_token
            if not token:
                return groups

    async def close(self) -> None:
        await self.runs.close(grace_s=10)
        for task in (self._expiring, *self._beats.values()):
            task.cancel()
        for server in self._servers:
            await server.stop(0)


def kinds(events: list[pb.RunEvent]) -> list[str]:
    """Returns the kinds of events, in order."""
    return [event.kind for event in events]
