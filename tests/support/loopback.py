"""Services in the process of the test, behind a real gRPC server on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.limits import ServerLimits
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2_grpc, environment_pb2_grpc, generator_pb2_grpc, learner_pb2_grpc, reward_pb2_grpc
from shoal.worker.reexec import Program

GENERATOR = "shoal.v1.GeneratorService"
REWARD = "shoal.v1.RewardService"
LEARNER = "shoal.v1.LearnerService"
COORDINATOR = "shoal.v1.CoordinatorService"
ENVIRONMENT = "shoal.v1.EnvironmentService"

ADD_TO_SERVER = {
    GENERATOR: generator_pb2_grpc.add_GeneratorServiceServicer_to_server,
    REWARD: reward_pb2_grpc.add_RewardServiceServicer_to_server,
    LEARNER: learner_pb2_grpc.add_LearnerServiceServicer_to_server,
    COORDINATOR: coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server,
    ENVIRONMENT: environment_pb2_grpc.add_EnvironmentServiceServicer_to_server,
}


@asynccontextmanager
async def started(server: RpcServer) -> AsyncIterator[str]:
    """Runs a server while the block runs; yields host:port."""
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(grace_s=0)


@asynccontextmanager
async def serving(
    servicer: Any,
    *services: str,
    port: int = 0,
    limits: ServerLimits | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[str]:
    """Offers the services of `servicer` while the block runs; yields host:port."""
    server = RpcServer(listen=f"127.0.0.1:{port}", limits=limits, credentials=credentials)
    for service in services:
        server.add(ADD_TO_SERVER[service], servicer, service)
    async with started(server) as address:
        yield address


class NoProgram(Program):
    """A program that never starts: the real one would replace the pytest that runs."""

    def __init__(self):
        super().__init__("", (), {})

    def execute(self):
        """Does nothing."""
