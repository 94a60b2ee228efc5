"""The health check of containers, against a real server."""

import sys

from shoal.rpc.server import RpcServer
from shoal.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from tests.support.loopback import REWARD, started
from tests.support.processes import ended


async def healthcheck(*arguments: str) -> tuple[int | None, str]:
    run = await ended(sys.executable, "-m", "shoal.rpc.healthcheck", *arguments, "--timeout-s", "20")
    return run.code, run.err


async def test_a_healthcheck_distinguishes_a_live_process_from_a_service_that_serves():
    server = RpcServer(listen="127.0.0.1:0")
    server.add(add_RewardServiceServicer_to_server, RewardServiceServicer(), REWARD)
    async with started(server) as address:
        assert await healthcheck(address) == (0, "")
        assert await healthcheck(address, REWARD) == (1, f"{REWARD} at {address} is NOT_SERVING\n")
        await server.set_serving(REWARD, True)
        assert await healthcheck(address, REWARD) == (0, "")
        code, error = await healthcheck(address, "shoal.v1.NobodyService")
        assert (code, "NOT_FOUND" in error) == (1, True), error
    code, error = await healthcheck(address)
    assert (code, "UNAVAILABLE" in error) == (1, True), error


async def test_a_healthcheck_imports_only_grpc():
    program = (
        "import sys, shoal.rpc.healthcheck; "
        "print(*sorted({'torch', 'numpy', 'pydantic', 'opentelemetry', 'transformers'} & set(sys.modules)))"
    )
    run = await ended(sys.executable, "-c", program)
    assert (run.code, run.out) == (0, "\n"), run
