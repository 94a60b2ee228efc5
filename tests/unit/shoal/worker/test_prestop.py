"""A worker that is told to end waits for a coordinator that is ending, and for no other."""

import asyncio
import sys
from pathlib import Path

import pytest

from shoal.rpc.auth.authority import Authority
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import WORKER_NAME
from shoal.rpc.server import RpcServer
from shoal.worker import prestop
from shoal.worker.prestop import COORDINATOR_SERVICE, wait_for_end


@pytest.fixture
async def coordinator():
    server = RpcServer(listen="127.0.0.1:0")
    server.add(lambda servicer, grpc_server: None, None, COORDINATOR_SERVICE)
    await server.start()
    yield server
    await server.stop(grace_s=0)


def waiting(port: int, *, at_most_s: float = 60) -> "asyncio.Task[str]":
    return asyncio.create_task(wait_for_end(f"127.0.0.1:{port}", settle_s=0, at_most_s=at_most_s, poll_s=0.01))


async def test_a_worker_ends_at_once_beside_a_coordinator_that_goes_on(coordinator: RpcServer) -> None:
    await coordinator.set_serving(COORDINATOR_SERVICE, True)
    assert await waiting(coordinator.port) == "goes on"


async def test_a_worker_stays_until_a_coordinator_that_ends_is_gone(coordinator: RpcServer) -> None:
    task = waiting(coordinator.port)  # Not SERVING, as while it writes a checkpoint.
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    await coordinator.stop(grace_s=0)
    assert await task == "is gone"


async def test_a_worker_does_not_wait_for_ever(coordinator: RpcServer) -> None:
    assert "still ending" in await waiting(coordinator.port, at_most_s=0.05)


def test_the_hook_of_a_worker_without_its_certificates_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prestop", "--coordinator", "127.0.0.1:1", "--tls-dir", str(tmp_path)])
    assert prestop.main() == 1
    assert "ca.crt is missing" in capsys.readouterr().err


async def test_a_worker_asks_a_coordinator_with_tls_with_its_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority.create()
    authority.issue(tmp_path / "coordinator", Role.COORDINATOR, "main", ("127.0.0.1",))
    authority.issue(tmp_path / "worker", Role.WORKER, "reward", (WORKER_NAME,))
    own = Credentials.of_server(Role.COORDINATOR, tls_dir=tmp_path / "coordinator", tokens_file=None)
    server = RpcServer(listen="127.0.0.1:0", credentials=own)
    server.add(lambda servicer, grpc_server: None, None, COORDINATOR_SERVICE)
    await server.start()
    await server.set_serving(COORDINATOR_SERVICE, True)
    monkeypatch.setattr(sys, "argv", ["prestop", "--settle-s=0"])
    monkeypatch.setenv("SHOAL_COORDINATOR", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("SHOAL_TLS_DIR", str(tmp_path / "worker"))
    monkeypatch.setattr(prestop.auth, "use", lambda credentials: used.append(credentials))
    monkeypatch.setattr(prestop.auth, "current", lambda: used[-1])
    used: list[Credentials] = []
    try:
        assert await asyncio.to_thread(prestop.main) == 0
        assert "goes on" in capsys.readouterr().err
    finally:
        await server.stop(grace_s=0)
