"""Registration of a worker, in any order of starts and after any restart."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from shoal import errors
from shoal.rpc import channel
from shoal.rpc.auth import credentials
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from shoal.v1 import coordinator_pb2, coordinator_pb2_grpc, worker_pb2
from shoal.worker import membership
from shoal.worker.membership import Membership
from tests.support.local_stack import free_port
from tests.support.loopback import COORDINATOR, REWARD, serving
from tests.support.secured import Pki, secured_server
from tests.support.worker_process import ScriptedWorker

TIMEOUT_S = 120


@pytest.fixture(autouse=True)
def no_retries(monkeypatch):
    """gRPC's retries take 1.5 s where nobody answers. Membership repeats its calls by itself."""
    monkeypatch.setattr(channel, "service_config", lambda service: "{}")


class Registry(coordinator_pb2_grpc.CoordinatorServiceServicer):
    def __init__(self, refusal=None):
        self.refusal = refusal
        self.workers = {}
        self.registrations = asyncio.Queue()
        self.heartbeats = asyncio.Queue()

    async def RegisterWorker(self, request, context):
        if self.refusal is not None:
            raise self.refusal
        self.workers[request.worker_id] = request
        self.registrations.put_nowait(request)
        return coordinator_pb2.RegisterWorkerResponse(lease={"seconds": 15})

    async def Heartbeat(self, request, context):
        if request.worker_id not in self.workers:
            raise errors.NotFound(f"no worker {request.worker_id}")
        if request.lease_secret != self.workers[request.worker_id].lease_secret:
            raise errors.PermissionDenied(f"{request.worker_id} has another secret")
        self.heartbeats.put_nowait(request)
        return coordinator_pb2.HeartbeatResponse()


async def next_of(queue):
    async with asyncio.timeout(TIMEOUT_S):
        return await queue.get()


class LogRecorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
        self._added = asyncio.Event()

    def emit(self, record):
        self.records.append(record)
        self._added.set()

    async def wait_for(self, error):
        async with asyncio.timeout(TIMEOUT_S):
            while not any(error in vars(record).get("error", "") for record in self.records):
                self._added.clear()
                await self._added.wait()


@pytest.fixture
async def log_recorder():
    handler = LogRecorder()
    log = logging.getLogger(membership.__name__)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@asynccontextmanager
async def kept(service, coordinator):
    task = asyncio.create_task(
        Membership(service, worker_id="reward-1", coordinator=coordinator, find_address=lambda: "10.0.0.7:7001").keep()
    )
    yield task
    task.cancel()
    await asyncio.wait([task])


async def test_a_worker_registers_and_reports_its_status():
    registry = Registry()
    async with serving(registry, COORDINATOR) as address, kept(ScriptedWorker(), address):
        registration = await next_of(registry.registrations)
        heartbeat = await next_of(registry.heartbeats)
    assert len(registration.lease_secret) >= 16
    assert registration == coordinator_pb2.RegisterWorkerRequest(
        worker_id="reward-1",
        kind=worker_pb2.WORKER_KIND_REWARD,
        address="10.0.0.7:7001",
        lease_secret=heartbeat.lease_secret,
    )
    assert heartbeat.worker_id == "reward-1"
    assert heartbeat.status == ScriptedWorker().status()


async def test_heartbeats_come_several_times_in_a_lease(monkeypatch):
    assert membership.HEARTBEAT_S * 5 <= 15
    monkeypatch.setattr(membership, "HEARTBEAT_S", 0.3)
    registry = Registry()
    async with serving(registry, COORDINATOR) as address, kept(ScriptedWorker(), address):
        for _ in range(4):
            await next_of(registry.heartbeats)
    assert registry.registrations.qsize() == 1, "a known worker registers once"


async def test_a_change_of_state_is_reported_at_once(monkeypatch):
    monkeypatch.setattr(membership, "HEARTBEAT_S", 3600.0)
    registry, worker = Registry(), ScriptedWorker()
    async with serving(registry, COORDINATOR) as address, kept(worker, address):
        await next_of(registry.heartbeats)
        worker.state = worker_pb2.WORKER_STATE_LOADING
        heartbeat = await next_of(registry.heartbeats)
    assert heartbeat.status.state == worker_pb2.WORKER_STATE_LOADING


async def test_a_worker_that_ends_because_it_failed_says_so_in_its_last_heartbeat(monkeypatch):
    monkeypatch.setattr(membership, "_POLL_S", 3600.0)  # Only the last heartbeat can notice it.
    registry, worker = Registry(), ScriptedWorker()
    async with serving(registry, COORDINATOR) as address:
        async with kept(worker, address):
            await next_of(registry.heartbeats)
            worker.state = worker_pb2.WORKER_STATE_FAILED
        heartbeat = await next_of(registry.heartbeats)
    assert heartbeat.status.state == worker_pb2.WORKER_STATE_FAILED


async def test_a_worker_that_is_leaving_does_not_register_again():
    registry, worker = Registry(), ScriptedWorker()
    async with serving(registry, COORDINATOR) as address, kept(worker, address) as keeping:
        await next_of(registry.heartbeats)
        worker.state = worker_pb2.WORKER_STATE_LEAVING
        assert (await next_of(registry.heartbeats)).status.state == worker_pb2.WORKER_STATE_LEAVING
        registry.workers.clear()
        await asyncio.wait_for(asyncio.shield(keeping), TIMEOUT_S)
    assert registry.registrations.qsize() == 1, "the coordinator has parted with it"


async def test_a_worker_that_is_leaving_does_not_wait_for_a_coordinator_that_is_gone(monkeypatch):
    monkeypatch.setattr(membership, "LEAVING_HEARTBEAT_S", 0.05)
    registry, worker = Registry(), ScriptedWorker()
    async with serving(registry, COORDINATOR) as address:
        member = Membership(worker, worker_id="w", coordinator=address, find_address=lambda: "10.0.0.7:7001")
        keeping = asyncio.create_task(member.keep())
        await next_of(registry.heartbeats)
    worker.state = worker_pb2.WORKER_STATE_LEAVING
    await asyncio.wait_for(keeping, TIMEOUT_S)


async def test_a_worker_survives_its_coordinator_and_registers_with_the_next(monkeypatch, log_recorder):
    monkeypatch.setattr(membership, "HEARTBEAT_S", 0.3)
    port = free_port()  # No coordinator answers yet.
    address = f"127.0.0.1:{port}"
    async with kept(ScriptedWorker(), address):
        await log_recorder.wait_for(f"{address} cannot be reached")
        for _ in range(2):
            registry = Registry()
            async with serving(registry, COORDINATOR, port=port):
                await next_of(registry.registrations)
                await next_of(registry.heartbeats)
    warnings = [record for record in log_recorder.records if record.levelname == "WARNING"]
    assert 1 <= len(warnings) <= 3, f"{len(warnings)} warnings: one for each absence, not for each heartbeat"


async def test_an_address_that_cannot_be_determined_is_logged_and_retried(monkeypatch, log_recorder):
    """Another service may answer there until the right one starts."""
    monkeypatch.setattr(membership, "HEARTBEAT_S", 0.3)
    async with serving(ScriptedWorker(), REWARD) as address, kept(ScriptedWorker(), address) as task:
        await log_recorder.wait_for(f"{address} does not offer")
        assert not task.done()


async def test_a_worker_says_once_why_it_cannot_use_the_certificate_of_its_coordinator(
    monkeypatch, log_recorder, tmp_path
):
    monkeypatch.setattr(membership, "HEARTBEAT_S", 0.1)
    ours, theirs = Pki(tmp_path / "ours"), Pki(tmp_path / "theirs")
    monkeypatch.setattr(credentials, "_process", Credentials(TlsFolder(ours.issue(Role.WORKER))))
    port = free_port()  # No coordinator answers yet, which is the first warning.
    async with kept(ScriptedWorker(), f"127.0.0.1:{port}"):
        await log_recorder.wait_for(f"no coordinator answers at 127.0.0.1:{port}")
        server = Credentials(TlsFolder(theirs.issue(Role.COORDINATOR)))
        async with secured_server(server, port=port) as address:
            await log_recorder.wait_for(f"the certificate of the coordinator at {address} is not accepted (")
            await asyncio.sleep(0.5)  # Several heartbeats, none of which says it again.
    assert len(log_recorder.records) == 2, [vars(record) for record in log_recorder.records]
