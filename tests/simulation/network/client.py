"""The client side of calls in memory: what `grpc.aio.insecure_channel` returns, with gRPC's own repeats."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator
from typing import Any

import grpc

from tests.simulation.network.exchange import BROKEN, UNREACHABLE, Exchange, Metadata, Status
from tests.simulation.network.server import Server
from tests.simulation.network.weather import Break, Weather
from tests.simulation.virtual_time import CURRENT, Process

_MAX_ATTEMPTS = 5
_BACKOFF_S = 0.1


class Network:
    """The servers by their addresses, and the calls between processes."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self._servers: dict[str, Server] = {}
        self._last: dict[str, Process] = {}
        """The last process at each address, whose machine may still be parted from others."""
        self._open: dict[Exchange, None] = {}

    def server(self, interceptors: Any = (), **_: Any) -> Server:
        """Makes a server of the process that runs, as `grpc.aio.server`."""
        process = CURRENT.get()
        assert process is not None
        return Server(process, self._listen, *interceptors)

    def _listen(self, address: str, server: Server) -> None:
        """Lets a server answer at an address, until its process is gone."""
        self._servers[address] = server
        self._last[address] = server.process
        server.process.at_kill.append(lambda: self._gone(server.process))

    def channel(self, address: str, options: Any = (), **_: Any) -> "Channel":
        return Channel(self, address, dict(options))

    def begin(self, address: str, method: str, metadata: Metadata) -> Exchange | None:
        """Begins a call; returns None if nobody answers at the address."""
        server = self._servers.get(address)
        if server is None:
            return None
        exchange = Exchange(self.weather, CURRENT.get(), server.process, metadata)
        self._open[exchange] = None
        exchange.accept_later(lambda: server.accept(exchange, method), lambda: self._open.pop(exchange, None))
        return exchange

    def listens(self, address: str) -> bool:
        return address in self._servers

    async def open_connection(self, host: str, port: int) -> tuple[None, "_Writer"]:
        loop, address = asyncio.get_running_loop(), f"{host}:{port}"
        server = self._servers.get(address)
        peer = self._last.get(address) if server is None else server.process
        await asyncio.sleep(self.weather.passes_at(CURRENT.get(), peer, loop.time()) - loop.time())
        if not self.listens(address):
            raise ConnectionRefusedError(address)
        return None, _Writer()

    def cut(self, one: Process, other: Process) -> None:
        for exchange in [each for each in self._open if {each.client, each.server} == {one, other}]:
            exchange.break_off()

    def _gone(self, process: Process) -> None:
        for address in [address for address, server in self._servers.items() if server.process is process]:
            del self._servers[address]
        for exchange in [each for each in self._open if process in (each.client, each.server)]:
            exchange.break_off()


class _Writer:
    """A connection that nobody writes to."""

    def close(self) -> None:
        pass


class Channel(grpc.aio.Channel):
    def __init__(self, network: Network, address: str, options: dict[str, Any]) -> None:
        self._network = network
        self._address = address
        policies = json.loads(options.get("grpc.service_config", "{}")).get("methodConfig", [])
        self._safe = {f"/{name['service']}/{name['method']}" for policy in policies for name in policy["name"]}
        self._calls: dict[Call, None] = {}

    def unary_unary(self, method: str, *serializers: Any, **options: Any) -> Any:
        return self._starter(method, *serializers, streams=False, **options)

    unary_stream = unary_unary

    def stream_unary(self, method: str, *serializers: Any, **options: Any) -> Any:
        return self._starter(method, *serializers, streams=True, **options)

    stream_stream = stream_unary

    def _starter(
        self, method: str, request_serializer: Any, response_deserializer: Any, *, streams: bool, **_: Any
    ) -> Any:
        def start(request: Any, *, timeout: float, metadata: Metadata, **_: Any) -> Call:
            requests = request if streams else _only(request)

            def begin() -> Exchange | None:
                return self._network.begin(self._address, method, metadata)

            max_attempts = _MAX_ATTEMPTS if method in self._safe else 1
            call = Call(begin, requests, request_serializer, response_deserializer, timeout, max_attempts)
            self._calls[call] = None
            call.add_done_callback(lambda ended: self._calls.pop(ended, None))
            return call

        return start

    async def close(self, grace: float | None = None) -> None:
        for call in list(self._calls):
            call.cancel()

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        states = grpc.ChannelConnectivity
        return states.READY if self._network.listens(self._address) else states.TRANSIENT_FAILURE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await asyncio.Event().wait()

    async def channel_ready(self) -> None:
        pass


class Call:
    """One call with the interface that `shoal.rpc.calls` uses of `grpc.aio`'s."""

    def __init__(
        self,
        begin: Callable[[], Exchange | None],
        requests: AsyncIterable[Any],
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        timeout_s: float,
        max_attempts: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._begin = begin
        self._deserialize = deserialize
        self._max_attempts = max_attempts
        self._sent: list[bytes] = []
        self._is_half_closed = False
        self._exchange: Exchange | None = None
        self._responses: deque[Any] = deque()
        self._has_answer = False
        self._status: Status | None = None
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[Call], None]] = []
        self._deadline = loop.call_later(
            timeout_s, lambda: self._end(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), cancel=True)
        )
        self._feeding = loop.create_task(self._feed(requests, serialize))
        self._trying = loop.create_task(self._try())

    async def _feed(self, requests: AsyncIterable[Any], serialize: Callable[[Any], bytes]) -> None:
        try:
            async for request in requests:
                self._sent.append(serialize(request))
                if self._exchange is not None:
                    self._exchange.send(self._sent[-1])
        except Exception:
            self.cancel()
            return
        self._is_half_closed = True
        if self._exchange is not None:
            self._exchange.half_close()

    async def _try(self) -> None:
        for number in range(1, self._max_attempts + 1):
            status = await self._attempt()
            is_final = (
                status.code is not grpc.StatusCode.UNAVAILABLE
                or self._has_answer
                or any(key == "grpc-retry-pushback-ms" for key, _ in status.trailers)
            )
            if is_final or number == self._max_attempts:
                break
            await asyncio.sleep(_BACKOFF_S * 2**number)
        self._end(status)

    async def _attempt(self) -> Status:
        exchange = self._begin()
        if exchange is None:
            await asyncio.sleep(0.001)
            return UNREACHABLE
        ended: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        exchange.on_response = self._receive
        exchange.on_status = lambda status: None if ended.done() else ended.set_result(status)
        self._exchange = exchange
        if exchange.breaks_at is Break.REQUEST:
            exchange.break_off()
        for request in self._sent:
            exchange.send(request)
        if self._is_half_closed:
            exchange.half_close()
        try:
            return await ended
        finally:
            self._exchange = None

    def _receive(self, response: bytes) -> None:
        self._has_answer = True
        self._responses.append(self._deserialize(response))
        self._wake()

    def _end(self, status: Status, *, cancel: bool = False) -> None:
        if self._status is not None:
            return
        self._status = status
        if cancel and self._exchange is not None:
            self._exchange.cancel()
        self._deadline.cancel()
        self._feeding.cancel()
        self._trying.cancel()
        self._wake()
        for callback in self._callbacks:
            asyncio.get_running_loop().call_soon(callback, self)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        try:
            await self._changed.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _next(self) -> Any:
        """Returns the next response; None at the end. Raises the status of a call that failed."""
        while not self._responses and self._status is None:
            await self._change()
        if self._status is not None and self._status.code is grpc.StatusCode.CANCELLED:
            raise asyncio.CancelledError
        if self._responses:
            return self._responses.popleft()
        assert self._status is not None
        if self._status.code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                self._status.code, trailing_metadata=self._status.trailers, details=self._status.details
            )
        return None

    async def _response(self) -> Any:
        response = await self._next()
        while self._status is None:
            await self._change()
        await self._next()
        return response

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (response := await self._next()) is not None:
            yield response

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._end(Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"), cancel=True)
        return True

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self._status is not None and self._status.code is grpc.StatusCode.CANCELLED

    def add_done_callback(self, callback: "Callable[[Call], None]") -> None:
        if self._status is not None:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        return (self._status or BROKEN).code

    async def details(self) -> str:
        return (self._status or BROKEN).details

    async def trailing_metadata(self) -> Metadata:
        return (self._status or BROKEN).trailers


async def _only(request: Any) -> AsyncIterator[Any]:
    yield request
