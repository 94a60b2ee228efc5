"""A learner and generators in light processes of their own: real services, weights and gloo groups, but no model.

Each process forks from one that has imported torch already, and ends itself, stops or hangs where its script says so.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import LEASE_S, WorkerRecord
from services.generator.engine import LoadReport
from services.generator.service import GeneratorService
from services.learner.publish import WeightPublisher
from shoal.arrays import Float32Array
from shoal.concurrency import Signal
from shoal.config import RunConfig
from shoal.config.load import config_struct
from shoal.errors import DeadlineExceeded, Unavailable
from shoal.rollout import WeightVersion
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import generator_pb2, generator_pb2_grpc, learner_pb2, learner_pb2_grpc, weights_pb2, worker_pb2
from shoal.weights.board import open_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec, hashes_to_wire
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import hash_tensor, receive_weights
from shoal.wire import invalid
from tests.support.loopback import ADD_TO_SERVER, LEARNER
from tests.support.waiting import eventually

MANIFEST = Manifest(tuple(TensorSpec(f"layer.{index}", "float32", (1_200_000,)) for index in range(6)))
"""28.8 MB in six broadcasts: more than sockets buffer, so a member that does not receive holds the sender."""


def tensors(policy_version: int) -> Iterator[tuple[str, torch.Tensor]]:
    for index, spec in enumerate(MANIFEST.tensors):
        yield spec.name, torch.full(spec.shape, float(policy_version * 10 + index))


@dataclass(frozen=True)
class Script:
    """What a process does to itself, "point action" in a file: the action is kill, stop, hang or flip.

    A point is "join", when it is called to join; "ready", before the broadcast; "during" it; or "received", after it.
    """

    file: Path

    def act(self, point: str, buffer: torch.Tensor | None = None) -> None:
        found = self.file.read_text().split() if self.file.exists() else []
        if found[:1] != [point]:
            return
        self.file.unlink()
        if found[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif found[1] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif found[1] == "hang":
            time.sleep(600)
        elif found[1] == "flip" and buffer is not None:
            buffer.view(torch.uint8)[12345] ^= 4


class GlooEngine:
    """An engine that receives weights and samples nothing."""

    loads_while_sampling = False
    num_weight_ranks = 1
    max_model_len = 64
    vocab_size = 64
    dtype = "float32"
    kv_cache_use: float | None = None

    def __init__(self, script: Script) -> None:
        self._script = script
        self._group: BroadcastGroup | None = None

    async def check_manifest(self, manifest: Manifest) -> None:
        if self._script.file.exists() and self._script.file.read_text() == "manifest":
            raise invalid("manifest.tensors", "the model has no tensor 'layer.0'")

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        def join() -> None:
            self._script.act("join")
            store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=10)
            self._group = BroadcastGroup(rendezvous, rank=rank_offset, store=store, hostname="127.0.0.1")
            try:
                self._group.connect()
            except Unavailable as error:
                # The learner's wait may end first, and abort the group. It has posted who is missing, as for vLLM's.
                error.metadata.update(self._group.board.missing())
                raise

        await asyncio.to_thread(join)

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        group = self._group
        assert group is not None
        on_ready()
        began = time.monotonic()

        def receive() -> list[Any]:
            self._script.act("ready")
            hashes = []
            for index, (spec, tensor, found) in enumerate(receive_weights(group, MANIFEST)):
                if index == len(MANIFEST.tensors) // 2:
                    self._script.act("during", tensor)
                    # The hash is of what has arrived: again, since the script may have flipped a bit of it.
                    hashes.append(type(found)(spec.name, hash_tensor(tensor)))
                else:
                    hashes.append(found)
            self._script.act("received")
            return hashes

        return LoadReport(tuple(await asyncio.to_thread(receive)), time.monotonic() - began, 0.0)

    async def abort_group(self, reason: str) -> None:
        if self._group is not None:
            self._group.abort(reason)

    async def leave_group(self) -> None:
        self._group = None

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        return np.zeros(len(token_ids) - 1, np.float32)

    async def pause(self, *, clear_cache: bool) -> None: ...

    async def resume(self) -> None: ...

    async def abort_all(self) -> None: ...

    async def died(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None: ...


class GlooLearner(learner_pb2_grpc.LearnerServiceServicer):
    """Rank 0 of a learner: the real publisher, over made-up weights."""

    def __init__(self, script: Script, config: RunConfig) -> None:
        self._script = script
        self._publisher = WeightPublisher(config, run_id="run", host="127.0.0.1", device=torch.device("cpu"))
        self.policy_version = 0

    async def GetStatus(self, request: Any, context: Any) -> learner_pb2.LearnerServiceGetStatusResponse:
        return learner_pb2.LearnerServiceGetStatusResponse()

    async def CreateWeightGroup(self, request: Any, context: Any) -> learner_pb2.CreateWeightGroupResponse:
        size = request.world_size
        rendezvous = await asyncio.to_thread(self._publisher.create_group, request.epoch, size, MANIFEST.num_bytes)
        return learner_pb2.CreateWeightGroupResponse(rendezvous=rendezvous.to_wire(), manifest=MANIFEST.to_wire())

    async def PublishWeights(self, request: Any, context: Any) -> learner_pb2.PublishWeightsResponse:
        began = time.monotonic()
        await asyncio.shield(asyncio.wrap_future(self._publisher.connected(request.epoch)))

        def scripted() -> Iterator[tuple[str, torch.Tensor]]:
            for index, item in enumerate(tensors(1)):
                if index == len(MANIFEST.tensors) // 2:
                    self._script.act("during")
                yield item

        hashes = await asyncio.to_thread(self._publisher.send, request.epoch, MANIFEST, scripted())
        return learner_pb2.PublishWeightsResponse(
            hashes=hashes_to_wire(hashes),
            canary=weights_pb2.Canary(logprobs=np.zeros(len(request.canary.token_ids) // 4 - 1, "<f4").tobytes()),
            num_bytes=MANIFEST.num_bytes,
            broadcast_s=time.monotonic() - began,
        )


def serve(kind: str, config: RunConfig, script: Script, ports: Any) -> None:
    """Serves a learner or a generator, as the main function of a process."""
    torch.set_num_threads(1)

    async def run() -> None:
        async def start_engine(config: RunConfig) -> GlooEngine:
            return GlooEngine(script)

        server = RpcServer(listen="127.0.0.1:0")
        servicer = GlooLearner(script, config) if kind == LEARNER else GeneratorService(start_engine, None)
        server.add(ADD_TO_SERVER[kind], servicer, kind)
        await server.start()
        ports.send(server.port)
        await asyncio.Event().wait()

    asyncio.run(run())


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.gloo_fleet"])


@dataclass
class Worker:
    process: Any
    script: Script
    member: Member

    def will(self, point: str, action: str) -> None:
        """Lets the process act on itself when it comes to a point."""
        self.script.file.write_text(f"{point} {action}")

    async def status(self) -> Any:
        request = generator_pb2.GeneratorServiceGetStatusRequest()
        return await self.member.stub.GetStatus(request, timeout=30)


@dataclass
class GlooFleet:
    folder: Path
    config: RunConfig
    workers: list[Worker] = field(default_factory=list)
    out: list[str] = field(default_factory=list)
    """Worker ids of members that were out of reach."""
    changed: Signal = field(default_factory=Signal)

    @property
    def generators(self) -> list[Member]:
        members = [worker.member for worker in self.workers]
        return [member for member in members if member.record.kind == worker_pb2.WORKER_KIND_GENERATOR]

    @property
    def learner(self) -> Member:
        return self.workers[0].member

    def out_of_reach(self, member: Member, error: Exception) -> None:
        member.is_out_of_reach, member.serving = True, False
        self.out.append(member.record.worker_id)

    async def still_serves(self, member: Member) -> bool:
        """Returns whether the learner answers, as it does after a broadcast that a generator broke off."""
        try:
            await member.stub.GetStatus(learner_pb2.LearnerServiceGetStatusRequest(), timeout=LEASE_S)
        except (Unavailable, DeadlineExceeded):
            return False
        return True

    async def start(self, kind: str, name: str) -> Worker:
        script = Script(self.folder / name)
        ours, theirs = _context.Pipe()
        process = _context.Process(target=serve, args=(kind, self.config, script, theirs), daemon=True)
        process.start()
        assert await asyncio.to_thread(ours.poll, 120), f"{name} does not start"
        address = f"127.0.0.1:{ours.recv()}"
        is_learner = kind == LEARNER
        number = worker_pb2.WORKER_KIND_LEARNER if is_learner else worker_pb2.WORKER_KIND_GENERATOR
        stub_of: Any = learner_pb2_grpc.LearnerServiceStub if is_learner else generator_pb2_grpc.GeneratorServiceStub
        channel = connect(address, kind)
        record = WorkerRecord(name, number, address, 1, 0.0)
        worker = Worker(process, script, Member(record, channel, stub_of(channel), serving=True))
        if not is_learner:
            request = generator_pb2.GeneratorServiceConfigureRequest(run_id="run", config=config_struct(self.config))
            await worker.member.stub.Configure(request, timeout=60)

            async def is_stale() -> bool:
                return (await worker.status()).status.state == worker_pb2.WORKER_STATE_STALE

            await eventually(is_stale)
        self.workers.append(worker)
        return worker

    async def end(self, worker: Worker) -> None:
        """Ends a process at once, also one that is stopped."""
        worker.process.kill()
        await asyncio.to_thread(worker.process.join)
        await worker.member.channel.close()
        self.workers.remove(worker)

    async def close(self) -> None:
        for worker in list(self.workers):
            with suppress(Unavailable):
                await self.end(worker)
