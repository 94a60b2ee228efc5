"""The gRPC server of the services: ports, health, limits, drain."""

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal import errors
from shoal.network import reserved_socket
from shoal.rpc.channel import connect
from shoal.rpc.limits import ServerLimits
from shoal.rpc.options import CLIENT
from shoal.rpc.server import RpcServer
from shoal.v1 import generator_pb2, generator_pb2_grpc
from tests.support.loopback import ADD_TO_SERVER, GENERATOR, serving, started

TIMEOUT_S = 120
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Gated(generator_pb2_grpc.GeneratorServiceServicer):
    def __init__(self):
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def GenerateGroup(self, request, context):
        yield generator_pb2.GenerateGroupResponse()
        self.begun.set()
        await self.gate.wait()
        yield generator_pb2.GenerateGroupResponse()

    async def GetStatus(self, request, context):
        return generator_pb2.GeneratorServiceGetStatusResponse()


ONE_GROUP = ServerLimits(calls={f"/{GENERATOR}/GenerateGroup": 1})


@pytest.fixture
def servicer():
    return Gated()


@pytest.fixture
async def server(servicer):
    server = RpcServer(listen="127.0.0.1:0")
    server.add(ADD_TO_SERVER[GENERATOR], servicer, GENERATOR)
    async with started(server):
        yield server


def generate(stub):
    return stub.GenerateGroup(generator_pb2.GenerateGroupRequest(), timeout=TIMEOUT_S)


async def count(call):
    return len([response async for response in call])


async def health_of(channel, service):
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)).status


async def test_a_second_server_on_the_same_port_is_refused():
    async with serving(Gated(), GENERATOR) as address:
        port = address.rpartition(":")[2]
        for listen in (address, f"0.0.0.0:{port}"):
            with pytest.raises(errors.FailedPrecondition, match=f"port {port} is in use") as raised:
                await RpcServer(listen=listen, allow_wildcard_address=True).start()
            assert raised.value.reason == "PORT_IN_USE"


async def test_servers_follow_each_other_on_a_reserved_port():
    with reserved_socket("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        for _ in range(2):
            server = RpcServer(listen=f"127.0.0.1:{port}")
            await server.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                assert await health_of(channel, "") == SERVING
            await server.stop(0)


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:0"])
async def test_an_address_of_another_machine_is_refused(listen):
    with pytest.raises(errors.InvalidArgument, match=listen.partition(":")[0]):
        await RpcServer(listen=listen).start()


async def test_health_distinguishes_alive_from_ready(server):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert (await health_of(channel, ""), await health_of(channel, GENERATOR)) == (SERVING, NOT_SERVING)
        await server.set_serving(GENERATOR, True)
        assert (await health_of(channel, ""), await health_of(channel, GENERATOR)) == (SERVING, SERVING)
        await server.set_serving(GENERATOR, False)
        assert (await health_of(channel, ""), await health_of(channel, GENERATOR)) == (SERVING, NOT_SERVING)


async def test_a_drain_cancels_calls_after_its_grace(servicer, server):
    async with connect(f"127.0.0.1:{server.port}", GENERATOR) as channel:
        in_flight = asyncio.create_task(count(generate(generator_pb2_grpc.GeneratorServiceStub(channel))))
        await servicer.begun.wait()
        await server.stop(grace_s=0.1)
        with pytest.raises(errors.Unavailable):
            await in_flight


async def test_above_the_limit_work_is_refused_and_status_is_answered(servicer):
    async with serving(servicer, GENERATOR, limits=ONE_GROUP) as address, connect(address, GENERATOR) as channel:
        stub = generator_pb2_grpc.GeneratorServiceStub(channel)
        first = asyncio.create_task(count(generate(stub)))
        await servicer.begun.wait()
        with pytest.raises(errors.ResourceExhausted, match=" 1 call ") as raised:
            await count(generate(stub))
        assert raised.value.reason == "TOO_MANY_CALLS"
        assert raised.value.retry_after_s == 1.0
        await stub.GetStatus(generator_pb2.GeneratorServiceGetStatusRequest(), timeout=TIMEOUT_S)
        servicer.gate.set()
        assert await first == 2
        assert await count(generate(stub)) == 2


async def test_a_blocked_event_loop_is_logged(monkeypatch):
    warned = asyncio.Event()
    lags = []

    def warning(event, extra):
        lags.append(extra["lag_s"])
        warned.set()

    monkeypatch.setattr("shoal.rpc.server._log.warning", warning)
    monkeypatch.setattr("shoal.rpc.server._PROBE_S", 0.1)
    monkeypatch.setattr("shoal.rpc.server._WARN_S", 0.2)
    async with serving(Gated(), GENERATOR):
        await asyncio.sleep(0)  # Lets the measurement begin.
        time.sleep(0.6)  # noqa: ASYNC251 - blocks the loop on purpose
        async with asyncio.timeout(TIMEOUT_S):
            await warned.wait()
    assert lags[0] > 0.2, lags


async def test_a_client_that_pings_often_is_not_disconnected(servicer):
    """The server must allow the client's keepalive, or it ends long calls with "too_many_pings"."""
    settings = dict(CLIENT) | {"grpc.keepalive_time_ms": 200}
    async with (
        serving(servicer, GENERATOR) as address,
        grpc.aio.insecure_channel(address, options=list(settings.items())) as channel,
    ):
        in_flight = asyncio.create_task(count(generate(generator_pb2_grpc.GeneratorServiceStub(channel))))
        await servicer.begun.wait()
        await asyncio.sleep(6)  # gRPC pings at most once a second; a strict server disconnects at the fourth ping.
        servicer.gate.set()
        assert await in_flight == 2
