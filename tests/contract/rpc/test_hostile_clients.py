"""Clients that send nothing, send one byte now and then, or open calls and never read: others are served."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal.errors import ResourceExhausted
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.channel import connect
from shoal.rpc.limits import CALLS, ServerLimits
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc, environment_pb2, environment_pb2_grpc
from tests.support.loopback import COORDINATOR, ENVIRONMENT, serving
from tests.support.secured import METHODS, Pki
from tests.support.waiting import PATIENCE_S, eventually

MIB = 1 << 20


class Talkative(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers at once, and sends watchers events of 32 KiB for ever."""

    def __init__(self) -> None:
        self.num_watchers = 0
        self.num_sent = 0

    async def GetRun(self, request: Any, context: Any) -> pb.GetRunResponse:
        return pb.GetRunResponse(run=pb.Run(run_id="here"))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        self.num_watchers += 1
        try:
            while True:
                yield pb.WatchRunResponse(event=pb.RunEvent(message="x" * (32 << 10)))
                self.num_sent += 1
        finally:
            self.num_watchers -= 1


async def check_served(address: str, credentials: Credentials | None = None) -> None:
    """Checks that another client gets answers: the health of the process, and a run."""
    async with connect(address, COORDINATOR, credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        # The server may not have seen yet that others have left, or be too busy for a handshake.
        status = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True)
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        assert (await stub.GetRun(pb.GetRunRequest(), timeout=PATIENCE_S)).run.run_id == "here"


def connection(address: str, begin: bytes = b"") -> socket.socket:
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)))
    plain.sendall(begin)
    plain.setblocking(False)
    return plain


def is_closed(plain: socket.socket) -> bool:
    try:
        while plain.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call_headers(path: str) -> bytes:
    """The headers of a gRPC call, none of them compressed."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )


def calls(path: str, streams: Iterable[int]) -> bytes:
    headers = call_headers(path)
    return b"".join(frame(1, 4, stream, headers) + frame(0, 1, stream, bytes(5)) for stream in streams)


HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
"""The begin of a connection."""
_MOST = 2**31 - 1
WIDE_OPEN = HTTP2 + frame(4, 0, 0, struct.pack(">HI", 4, _MOST)) + frame(8, 0, 0, struct.pack(">I", _MOST - 65535))
"""The begin of a connection that lets the server send without limits."""


@pytest.mark.parametrize("begin", [b"", HTTP2[:10]], ids=["nothing", "half of the preface"])
async def test_connections_that_do_not_begin_are_closed_and_others_are_served_meanwhile(begin: bytes) -> None:
    async with serving(Talkative(), COORDINATOR, limits=ServerLimits(handshake_timeout_s=1)) as address:
        silent = [connection(address, begin) for _ in range(100)]
        await check_served(address)
        await eventually(lambda: all(map(is_closed, silent)), "silent connections are closed")
        await check_served(address)


async def test_half_a_tls_handshake_is_closed_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    pki, limits = Pki(tmp_path), ServerLimits(handshake_timeout_s=1)
    own, operator = (Credentials(TlsFolder(pki.issue(role))) for role in (Role.COORDINATOR, Role.OPERATOR))
    # The begin of a ClientHello that announces 512 bytes.
    hello = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])
    async with serving(Talkative(), COORDINATOR, limits=limits, credentials=own) as address:
        half = [connection(address, hello) for _ in range(50)]
        await check_served(address, operator)
        await eventually(lambda: all(map(is_closed, half)), "half a handshake is closed")
        await check_served(address, operator)


async def test_connections_above_the_limit_are_closed_and_those_below_are_served() -> None:
    async with (
        serving(Talkative(), COORDINATOR, limits=ServerLimits(connections=20, handshake_timeout_s=2)) as address,
        connect(address, COORDINATOR) as channel,
    ):
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        await stub.GetRun(pb.GetRunRequest(), timeout=PATIENCE_S)
        many = [connection(address, HTTP2) for _ in range(200)]
        await eventually(lambda: sum(map(is_closed, many)) >= 180, "connections above the limit are closed")
        await stub.GetRun(pb.GetRunRequest(), timeout=PATIENCE_S)
        for plain in many:
            plain.close()
        await check_served(address)


async def test_requests_that_come_one_byte_at_a_time_end_at_their_deadline_and_others_are_served_meanwhile() -> None:
    async with serving(Talkative(), COORDINATOR, limits=ServerLimits(request_timeout_s=1)) as address:
        # 200 calls on one connection, each of a message of 100 bytes, of which one byte comes every 50 ms.
        slow = connection(address, HTTP2)
        streams = range(1, 401, 2)
        headers = call_headers(f"/{COORDINATOR}/GetRun")
        begin = b"".join(frame(1, 4, stream, headers) + frame(0, 0, stream, b"\0\0\0\0\x64") for stream in streams)
        received = bytearray()

        async def drip() -> None:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(slow, begin)
            for _ in range(50):
                await asyncio.sleep(0.05)
                await loop.sock_sendall(slow, b"".join(frame(0, 0, stream, b"\0") for stream in streams[:10]))

        dripping = asyncio.create_task(drip())
        await check_served(address)

        def all_ended() -> bool:
            with contextlib.suppress(BlockingIOError):
                while data := slow.recv(1 << 16):
                    received.extend(data)
            return num_ended(bytes(received)) >= len(streams)

        await eventually(all_ended, "every call has got its status")
        await check_served(address)
        dripping.cancel()
        slow.close()


def num_ended(received: bytes) -> int:
    position, ended = 0, set()
    while position + 9 <= len(received):
        length, kind, flags = (
            int.from_bytes(received[position : position + 3]),
            received[position + 3],
            received[position + 4],
        )
        stream = int.from_bytes(received[position + 5 : position + 9])
        if (kind in (0, 1) and flags & 1) or kind == 3:
            ended.add(stream)
        position += 9 + length
    return len(ended)


async def test_a_unary_call_without_its_request_ends_at_its_deadline() -> None:
    async with (
        serving(Talkative(), COORDINATOR, limits=ServerLimits(request_timeout_s=1)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = channel.stream_unary(f"/{COORDINATOR}/GetRun")()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "1 s" in await call.details()
        empty = channel.stream_unary(f"/{COORDINATOR}/GetRun")(iter(()))
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT, await empty.details()


class Streaming(environment_pb2_grpc.EnvironmentServiceServicer):
    async def RunEpisode(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[environment_pb2.RunEpisodeResponse]:
        numbers = [request.turn.number async for request in request_iterator]
        yield environment_pb2.RunEpisodeResponse(observation=environment_pb2.Observation(turn=sum(numbers)))


async def test_a_stream_of_requests_without_its_first_message_ends_at_its_deadline_and_frees_its_place() -> None:
    path = f"/{ENVIRONMENT}/RunEpisode"
    limits = ServerLimits(calls={path: 1}, request_timeout_s=1)
    async with (
        serving(Streaming(), ENVIRONMENT, limits=limits) as address,
        grpc.aio.insecure_channel(address) as channel,
        connect(address, ENVIRONMENT) as another,
    ):
        silent: Any = channel.stream_stream(path)()
        assert await silent.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "1 s" in await silent.details()
        requests = [environment_pb2.RunEpisodeRequest(turn={"number": number}) for number in (1, 2, 3)]
        stub = environment_pb2_grpc.EnvironmentServiceStub(another)
        answers = [answer async for answer in stub.RunEpisode(requests, timeout=PATIENCE_S)]
        assert [answer.observation.turn for answer in answers] == [6], "all messages arrive"
        answers = [answer async for answer in stub.RunEpisode([], timeout=PATIENCE_S)]
        assert [answer.observation.turn for answer in answers] == [0], "a stream may have no message"


async def test_a_call_of_reflection_without_its_first_message_ends_at_its_deadline_and_others_are_answered() -> None:
    async with (
        serving(Streaming(), ENVIRONMENT, limits=ServerLimits(request_timeout_s=1)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        silent: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
            timeout=PATIENCE_S
        )
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")] * 2
        answers = [answer async for answer in stub.ServerReflectionInfo(iter(asked), timeout=PATIENCE_S)]
        names = [{service.name for service in answer.list_services_response.service} for answer in answers]
        assert len(names) == 2 and all(ENVIRONMENT in some for some in names), names
        assert await silent.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "1 s" in await silent.details()


async def test_watchers_of_the_health_which_needs_no_role_are_limited_and_its_checks_are_not() -> None:
    path = "/grpc.health.v1.Health/Watch"
    assert path in CALLS
    limits = ServerLimits(calls={path: 3}, request_timeout_s=1)
    async with (
        serving(Talkative(), COORDINATOR, limits=limits) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watching = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(3)]
        for call in watching:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        more = health.Watch(health_pb2.HealthCheckRequest())
        assert await more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, await more.details()
        silent: Any = channel.stream_unary("/grpc.health.v1.Health/Check")()
        assert await silent.code() is grpc.StatusCode.DEADLINE_EXCEEDED, await silent.details()
        await check_served(address)
        for call in watching:
            call.cancel()

        async def is_free() -> bool:
            call = health.Watch(health_pb2.HealthCheckRequest())
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await call.read() is not grpc.aio.EOF
            return False

        await eventually(is_free, "the places of watchers that have left are free")


def test_every_rpc_whose_calls_wait_for_their_callers_has_a_limit() -> None:
    waiting = {path for path, method in METHODS.items() if method.client_streaming}
    assert waiting <= set(CALLS), f"open for ever, without a limit: {waiting - set(CALLS)}"


async def test_watchers_that_never_read_take_little_memory_and_their_number_is_limited() -> None:
    servicer, path = Talkative(), f"/{COORDINATOR}/WatchRun"
    process = psutil.Process()
    async with serving(servicer, COORDINATOR, limits=ServerLimits(calls={path: 100})) as address:
        before = process.memory_info().rss
        deaf = connection(address, WIDE_OPEN)
        await asyncio.get_running_loop().sock_sendall(deaf, calls(path, range(1, 201, 2)))
        await eventually(lambda: servicer.num_watchers == 100, "all watchers are served")
        async with connect(address, COORDINATOR) as other:
            watcher = coordinator_pb2_grpc.CoordinatorServiceStub(other).WatchRun(pb.WatchRunRequest(), timeout=60)
            with pytest.raises(ResourceExhausted, match="100 calls"):
                await watcher.read()
        await check_served(address)
        num_sent = -1
        while num_sent != servicer.num_sent:  # Until no watcher takes more.
            num_sent = servicer.num_sent
            await asyncio.sleep(0.2)
        grown = (process.memory_info().rss - before) / MIB
        assert grown < 100, f"100 watchers of endless events took {grown:.0f} MiB, {num_sent} events were sent"
        deaf.close()
        await eventually(lambda: servicer.num_watchers == 0, "watchers that vanish are freed")
        await check_served(address)
