"""A live lease goes to another process only when the one that holds it is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.workers import ended_processes
from services.coordinator.workers.registry import LEASE_S, WorkerRecord, WorkerRegistry
from shoal.errors import FailedPrecondition, NotFound, PermissionDenied
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests.support.clock import Clock
from tests.support.loopback import COORDINATOR, serving
from tests.support.secured import Pki
from tests.support.waiting import PATIENCE_S


class Coordinator:
    def __init__(self, registry: WorkerRegistry, address: str, credentials: Credentials) -> None:
        self.registry = registry
        self.address = address
        self.channel = connect(address, COORDINATOR, credentials)
        self.stub = CoordinatorServiceStub(self.channel)

    async def register(self, worker_id: str, address: str, secret: bytes = b"") -> None:
        request = pb.RegisterWorkerRequest(
            worker_id=worker_id, kind=worker_pb2.WORKER_KIND_GENERATOR, address=address, lease_secret=secret
        )
        await self.stub.RegisterWorker(request, timeout=PATIENCE_S)

    async def beat(self, worker_id: str, secret: bytes = b"") -> None:
        request = pb.HeartbeatRequest(worker_id=worker_id, lease_secret=secret)
        await self.stub.Heartbeat(request, timeout=PATIENCE_S)

    async def is_refused(self, worker_id: str, address: str) -> bool:
        with pytest.raises(FailedPrecondition, match="has a valid lease") as raised:
            await self.register(worker_id, address)
        return raised.value.reason == "LEASE_HELD"

    def alive(self) -> list[tuple[str, str]]:
        return [(record.worker_id, record.address) for record in self.registry.alive(worker_pb2.WORKER_KIND_GENERATOR)]


@asynccontextmanager
async def coordinator(
    folder: Path, clock: Clock | None = None, server: Credentials | None = None, client: Credentials | None = None
) -> AsyncIterator[Coordinator]:
    registry = WorkerRegistry(clock or Clock())
    servicer = CoordinatorService(Runs(folder / "runs", registry), registry)
    async with serving(servicer, COORDINATOR, credentials=server) as address:
        made = Coordinator(registry, address, client or Credentials())
        try:
            yield made
        finally:
            await made.channel.close()


async def worker(worker_id: str, *, port: int = 0, credentials: Credentials | None = None) -> RpcServer:
    server = RpcServer(listen=f"127.0.0.1:{port}", credentials=credentials)
    await server.start()
    await server.set_serving(worker_id, True)
    return server


async def test_a_worker_that_answers_keeps_its_lease_against_its_address_and_its_name(tmp_path: Path) -> None:
    holder = await worker("generator-a")
    address = f"127.0.0.1:{holder.port}"
    async with coordinator(tmp_path) as registered:
        await registered.register("generator-a", address)
        assert await registered.is_refused("generator-b", address), "its address"
        assert await registered.is_refused("generator-a", "127.0.0.1:9"), "its name"
        await registered.register("generator-a", address)  # It may register again itself.
        assert registered.alive() == [("generator-a", address)]
    await holder.stop(0)


async def test_the_lease_of_a_process_that_is_gone_is_free_at_once(tmp_path: Path) -> None:
    holder = await worker("generator-a")
    address = f"127.0.0.1:{holder.port}"
    async with coordinator(tmp_path) as registered:
        await registered.register("generator-a", address)
        await holder.stop(0)
        await registered.register("generator-a", "127.0.0.1:9")
        assert registered.alive() == [("generator-a", "127.0.0.1:9")]
        successor = await worker("generator-b", port=holder.port)
        await registered.register("generator-c", "127.0.0.1:9")
        await registered.register("generator-b", address)
        assert registered.alive() == [("generator-c", "127.0.0.1:9"), ("generator-b", address)]
        await successor.stop(0)


async def test_another_process_at_the_address_frees_the_lease(tmp_path: Path) -> None:
    holder = await worker("generator-a")
    address = f"127.0.0.1:{holder.port}"
    async with coordinator(tmp_path) as registered:
        await registered.register("generator-a", address)
        await holder.stop(0)
        successor = await worker("generator-b", port=holder.port)
        await registered.register("generator-b", address)
        assert registered.alive() == [("generator-b", address)]
        await successor.stop(0)


async def test_of_two_processes_that_register_at_the_same_moment_the_second_does_not_take_the_lease_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the process before them gone; only then the first one registers."""
    is_gone, both_call, num_calls = ended_processes._is_gone, asyncio.Event(), 0

    async def is_gone_to_both(record: WorkerRecord) -> bool:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            both_call.set()
        gone = await is_gone(record)
        await both_call.wait()
        return gone

    monkeypatch.setattr(ended_processes, "_is_gone", is_gone_to_both)
    holders = [await worker("generator-a") for _ in range(2)]
    addresses = [f"127.0.0.1:{holder.port}" for holder in holders]
    async with coordinator(tmp_path) as registered:
        await registered.register("generator-a", "127.0.0.1:9", b"of the one that is gone")
        calls = [registered.register("generator-a", address, address.encode()) for address in addresses]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [result for result in results if result is not None]
        assert [getattr(error, "reason", error) for error in refused] == ["LEASE_HELD"], results
        assert registered.alive() == [("generator-a", addresses[results.index(None)])]
    for holder in holders:
        await holder.stop(0)


async def test_a_process_that_hangs_keeps_its_lease_until_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_processes, "CALL_TIMEOUT_S", 0.5)
    hanging = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
    clock = Clock(0.0)
    async with coordinator(tmp_path, clock) as registered:
        await registered.register("generator-a", address)
        assert await registered.is_refused("generator-b", address)
        clock.now += LEASE_S + 1
        registered.registry.expire()
        await registered.register("generator-b", address)
        assert registered.alive() == [("generator-b", address)]
    hanging.close()


async def test_only_a_worker_may_register_and_the_holder_is_called_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki(tmp_path)
    of_coordinator, of_worker = (Credentials(TlsFolder(pki.issue(role))) for role in (Role.COORDINATOR, Role.WORKER))
    monkeypatch.setattr(auth, "_process", of_coordinator)
    holder = await worker("generator-a", credentials=of_worker)
    address = f"127.0.0.1:{holder.port}"
    async with coordinator(tmp_path, server=of_coordinator, client=of_worker) as registered:
        await registered.register("generator-a", address)
        assert await registered.is_refused("generator-b", address)
        await holder.stop(0)
        await registered.register("generator-b", address)
        for role in (Role.OPERATOR, Role.VIEWER, Role.COORDINATOR):
            other = Coordinator(registered.registry, registered.address, Credentials(TlsFolder(pki.issue(role))))
            with pytest.raises(PermissionDenied, match=r"RegisterWorker .* worker"):
                await other.register("generator-c", address)
            await other.channel.close()
        assert registered.alive() == [("generator-b", address)]


def status_of(registry: WorkerRegistry, worker_id: str) -> tuple[float, bool]:
    record = next(record for record in registry.all() if record.worker_id == worker_id)
    return record.heartbeat_at, record.lost


async def test_nobody_renews_a_lease_without_the_secret_of_the_process_that_holds_it(tmp_path: Path) -> None:
    clock = Clock(0.0)
    holder = await worker("generator-a")
    address = f"127.0.0.1:{holder.port}"
    async with coordinator(tmp_path, clock) as registered:
        await registered.register("generator-a", address, b"chosen by a")
        clock.now += 1
        for guess in (b"", b"chosen by b"):
            with pytest.raises(PermissionDenied, match="generator-a"):
                await registered.beat("generator-a", guess)
            with pytest.raises(FailedPrecondition, match="has a valid lease"):
                await registered.register("generator-a", address, guess)
        assert status_of(registered.registry, "generator-a") == (0.0, False), "a stranger changed the lease"
        await registered.beat("generator-a", b"chosen by a")
        await registered.register("generator-a", address, b"chosen by a")
        assert status_of(registered.registry, "generator-a") == (1.0, False)
        clock.now += LEASE_S + 1
        registered.registry.expire()
        with pytest.raises(NotFound):
            await registered.beat("generator-a", b"chosen by a")
        await registered.register("generator-a", address, b"chosen by its next process")
    await holder.stop(0)


async def test_a_certificate_of_another_worker_renews_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pki = Pki(tmp_path)
    of_coordinator = Credentials(TlsFolder(pki.issue(Role.COORDINATOR)))
    one, other = (Credentials(TlsFolder(pki.issue(Role.WORKER, name=name))) for name in ("one", "other"))
    monkeypatch.setattr(auth, "_process", of_coordinator)
    holder = await worker("generator-a", credentials=one)
    address = f"127.0.0.1:{holder.port}"
    clock = Clock(0.0)
    async with coordinator(tmp_path, clock, server=of_coordinator, client=one) as registered:
        thief = Coordinator(registered.registry, registered.address, other)
        await registered.register("generator-a", address, b"known to both")
        clock.now += 1
        with pytest.raises(PermissionDenied, match="another caller"):
            await thief.beat("generator-a", b"known to both")
        assert await thief.is_refused("generator-a", address)
        assert status_of(registered.registry, "generator-a") == (0.0, False)
        await registered.beat("generator-a", b"known to both")
        await thief.channel.close()
    await holder.stop(0)
