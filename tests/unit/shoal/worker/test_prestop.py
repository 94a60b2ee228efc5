"""A worker that is told to end waits for a coordinator that is ending, and for no other."""

import asyncio

import pytest

from shoal.rpc.server import RpcServer
from shoal.worker.prestop import COORDINATOR_SERVICE, wait_for_end


@pytest.fixture
async def coordinator():
    server = RpcServer(listen="127.0.0.1:0")
    server.add(lambda servicer, grpc_server: None, None, COORDINATOR_SERVICE)
    await server.start()
    yield server
    await server.stop(grace_s=0)


def waiting(port: int, *, at_most_s: float = 60) -> "asyncio.Task[float]":
    return asyncio.create_task(
        wait_for_end(f"127.0.0.1:{port}", settle_s=0, at_most_s=at_most_s, poll_s=0.01),
    )


async def test_a_worker_ends_at_once_beside_a_coordinator_that_goes_on(coordinator: RpcServer) -> None:
    await coordinator.set_serving(COORDINATOR_SERVICE, True)
    async with asyncio.timeout(60):
        await waiting(coordinator.port)


async def test_a_worker_stays_until_a_coordinator_that_ends_is_gone(coordinator: RpcServer) -> None:
    task = waiting(coordinator.port)  # Not SERVING, as while it writes a checkpoint.
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    await coordinator.stop(grace_s=0)
    async with asyncio.timeout(60):
        await task


async def test_a_worker_does_not_wait_for_ever(coordinator: RpcServer) -> None:
    async with asyncio.timeout(60):
        assert await waiting(coordinator.port, at_most_s=0.05) >= 0.05
