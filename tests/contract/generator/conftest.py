"""Generators over real gRPC, with an engine that follows a script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.generator.service import GeneratorService
from shoal.rpc.channel import connect
from shoal.v1 import worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.worker.reexec import Reexec
from tests.support.generator_client import Generator
from tests.support.loopback import GENERATOR, NoProgram, serving
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
async def idle() -> AsyncIterator[Generator]:
    engines: list[ScriptedEngine] = []
    starting: list[Awaitable[None] | Exception] = []

    async def start(_: Any) -> ScriptedEngine:
        if starting:
            first = starting.pop(0)
            if isinstance(first, Exception):
                raise first
            await first
        engines.append(ScriptedEngine())
        return engines[-1]

    ends = asyncio.Event()
    servicer = GeneratorService(start, Reexec(NoProgram(), end=ends.set))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(servicer, GENERATOR))
        channel = await stack.enter_async_context(connect(address, GENERATOR))
        stack.push_async_callback(servicer.close)
        yield Generator(GeneratorServiceStub(channel), servicer, engines, starting, ends)


@pytest.fixture
async def stale(idle: Generator) -> Generator:
    await idle.configure()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    return idle


@pytest.fixture
async def ready(stale: Generator) -> Generator:
    await stale.join()
    await stale.load(0)
    return stale
