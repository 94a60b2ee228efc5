"""A coordinator over real gRPC with scripted workers around it, for contract tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.workers.registry import WorkerRegistry
from shoal.errors import DeadlineExceeded
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc
from tests.support.loopback import ADD_TO_SERVER, COORDINATOR
from tests.support.scripted_workers import Plane, ScriptedGenerator, ScriptedLearner, ScriptedReward, serve_worker
from tests.support.waiting import PATIENCE_S

Events = list[pb.RunEvent]
NUM_SHOWN = 20
"""Last events of a run that did not come so far in time."""


class Cluster:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.plane = Plane()
        self.learner = ScriptedLearner(self.plane)
        self._servers: list[RpcServer] = []
        self._workers: dict[str, RpcServer] = {}
        self._beats: dict[str, asyncio.Task[None]] = {}
        self.registry = WorkerRegistry()
        self.runs = Runs(data_dir, self.registry)
        self._expiring: asyncio.Task[None]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, data_dir: Path) -> AsyncIterator[Self]:
        data_dir.mkdir(exist_ok=True)
        cluster = cls(data_dir)
        await cluster.open()
        try:
            yield cluster
        finally:
            await cluster.close()

    async def open(self) -> None:
        server = RpcServer(listen="127.0.0.1:0")
        server.add(ADD_TO_SERVER[COORDINATOR], CoordinatorService(self.runs, self.registry), COORDINATOR)
        await server.start()
        self._servers.append(server)
        self.address = f"127.0.0.1:{server.port}"
        self.stub = coordinator_pb2_grpc.CoordinatorServiceStub(connect(self.address, COORDINATOR))
        self._expiring = asyncio.create_task(self.registry.expire_forever())

    async def add(self, servicer: Any, worker_id: str) -> None:
        server, self._beats[worker_id] = await serve_worker(self.address, servicer, worker_id)
        self._workers[worker_id] = server
        self._servers.append(server)

    async def add_all(self, *generators: ScriptedGenerator, rewards: tuple[Any, ...] = ()) -> None:
        """Adds "learner-0", reward services ("reward-0" and so on) and generators."""
        await self.add(self.learner, "learner-0")
        for index, reward in enumerate(rewards or (ScriptedReward(),)):
            await self.add(reward, f"reward-{index}")
        for index, generator in enumerate(generators):
            await self.add(generator, f"generator-{index}")

    def silence(self, worker_id: str) -> None:
        self._beats[worker_id].cancel()

    async def kill(self, worker_id: str) -> None:
        """Ends a worker as kill -9 does: its connections break, its heartbeats stop."""
        self.silence(worker_id)
        await self._workers[worker_id].stop(0)

    async def start(self, config: dict[str, Any], run_id: str = "", resume: bool = False) -> pb.Run:
        struct = None if resume else json_format.ParseDict(config, Struct())
        request = pb.StartRunRequest(config=struct, run_id=run_id, resume=resume)
        return (await self.stub.StartRun(request, timeout=60)).run

    async def run(self) -> pb.Run:
        return (await self.stub.GetRun(pb.GetRunRequest(), timeout=60)).run

    async def pause(self) -> pb.Run:
        return (await self.stub.PauseRun(pb.PauseRunRequest(), timeout=PATIENCE_S)).run

    async def resume(self) -> pb.Run:
        return (await self.stub.ResumeRun(pb.ResumeRunRequest(), timeout=PATIENCE_S)).run

    async def stop(self, mode: pb.StopMode.ValueType = pb.STOP_MODE_UNSPECIFIED) -> pb.Run:
        return (await self.stub.StopRun(pb.StopRunRequest(mode=mode), timeout=PATIENCE_S)).run

    async def save_checkpoint(self) -> pb.SaveCheckpointResponse:
        return await self.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=PATIENCE_S)

    async def evaluate(self) -> pb.EvaluateResponse:
        return await self.stub.Evaluate(pb.EvaluateRequest(), timeout=PATIENCE_S)

    async def until(
        self, wanted: str | Callable[[pb.RunEvent], bool], timeout_s: float = PATIENCE_S, **attributes: Any
    ) -> list[pb.RunEvent]:
        """Returns the newest run's events up to the first that is wanted, or to the end.

        `wanted` is a condition, or a kind, with `attributes` that the event must have. A run that comes to neither in
        time fails the test, with its state and its last events.
        """

        def is_wanted(event: pb.RunEvent) -> bool:
            if not isinstance(wanted, str):
                return wanted(event)
            return event.kind == wanted and all(event.attributes[name] == value for name, value in attributes.items())

        seen = []
        try:
            async for response in self.stub.WatchRun(pb.WatchRunRequest(), timeout=timeout_s):
                seen.append(response.event)
                if is_wanted(response.event):
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

    async def finish(self, step: int | None = None, *, attempt: int | None = None) -> tuple[pb.Run, Events]:
        """Waits until the newest run is FINISHED, at a step and in an attempt if given; returns it and its events."""
        run, events = await self.end()
        state = pb.RunState.Name(run.state)
        assert run.state == pb.RUN_STATE_FINISHED, f"the run is {state} ({run.message}), after {kinds(events)}"
        assert step in (None, run.policy_version), f"it ended at step {run.policy_version}: {kinds(events)}"
        assert attempt in (None, run.attempt), f"it ended in attempt {run.attempt}: {kinds(events)}"
        return run, events

    async def run_to_end(
        self,
        config: dict[str, Any],
        run_id: str = "",
        resume: bool = False,
        *,
        step: int | None = None,
        attempt: int | None = None,
    ) -> tuple[pb.Run, Events]:
        """Starts or resumes a run, and waits as `finish` does."""
        await self.start(config, run_id, resume)
        return await self.finish(step, attempt=attempt)

    def metrics(self, run_id: str = "*") -> list[dict[str, float]]:
        text = next(self.data_dir.glob(f"{run_id}/metrics.jsonl")).read_text()
        return [json.loads(line) for line in text.splitlines()]

    async def groups(self) -> list[pb.RolloutGroup]:
        groups: list[pb.RolloutGroup] = []
        token = ""
        while True:
            page = await self.stub.ListRollouts(pb.ListRolloutsRequest(page_size=7, page_token=token), timeout=60)
            groups += page.groups
            token = page.next_page_token
            if not token:
                return groups

    async def check_every_group_was_used_once(self, num_steps: int) -> None:
        """Checks that ledger, the learner's batches and metrics agree, and that no group is missing or repeated."""
        groups = await self.groups()
        assert [group.order_number for group in groups] == list(range(len(groups))) and len(groups) >= num_steps * 4
        trained = [group.group_id for group in groups if group.state == "TRAINED"]
        in_batches = [m.group.group_id for batch in self.learner.batches for m in batch if m.HasField("group")]
        assert sorted(in_batches) == sorted(trained), "the learner's batches and the ledger differ"
        steps = [row["step"] for row in self.metrics() if "eval/num_prompts" not in row]
        assert steps == list(range(1, num_steps + 1))

    async def close(self) -> None:
        await self.runs.close(grace_s=10)
        for task in (self._expiring, *self._beats.values()):
            task.cancel()
        for server in self._servers:
            await server.stop(0)


def kinds(events: list[pb.RunEvent]) -> list[str]:
    return [event.kind for event in events]


def of_kind(events: list[pb.RunEvent], kind: str) -> list[pb.RunEvent]:
    return [event for event in events if event.kind == kind]
