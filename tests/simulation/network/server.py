"""The server side of calls in memory, below `RpcServer`: handlers of generated stubs, behind its interceptor."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from tests.simulation.network.exchange import Exchange, Status
from tests.simulation.virtual_time import Process


class _Aborted(Exception):
    """The handler has sent its status."""


class _Context:
    """The context of one call, as handlers and the interceptor use it."""

    def __init__(self, exchange: Exchange, serialize: Any) -> None:
        self._exchange = exchange
        self._serialize = serialize
        self._code: grpc.StatusCode | None = None

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def invocation_metadata(self) -> Any:
        return self._exchange.metadata

    def peer(self) -> str:
        client = self._exchange.client
        return f"memory:{client.name if client else 'system'}"

    async def write(self, response: Any) -> None:
        await asyncio.sleep(0)
        self._exchange.respond(self._serialize(response))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._code = code
        self._exchange.finish(Status(code, details, tuple(trailing_metadata)))
        raise _Aborted


class Server:
    """What `grpc.aio.server` returns: the handlers of one process at one address."""

    def __init__(self, process: Process, listen: Callable[[str, "Server"], None], interceptor: Any) -> None:
        self.process = process
        self._listen = listen
        self._interceptor = interceptor
        self._address = ""
        self._handlers: list[Any] = []
        self._known: dict[str, Any] = {}

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._listen(self._address, self)

    async def stop(self, grace: float | None) -> None:
        pass

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        pass

    async def _find(self, method: str) -> Any:
        async def continuation(details: Any) -> Any:
            found = (handler.service(details) for handler in self._handlers)
            return next((handler for handler in found if handler is not None), None)

        if method not in self._known:
            details: Any = SimpleNamespace(method=method, invocation_metadata=())
            self._known[method] = await self._interceptor.intercept_service(continuation, details)
        return self._known[method]

    def accept(self, exchange: Exchange, method: str) -> None:
        exchange.handling = self.process.create_task(self._handle(exchange, method))

    async def _handle(self, exchange: Exchange, method: str) -> None:
        handler = await self._find(method)
        if handler is None:
            exchange.finish(Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            return
        context = _Context(exchange, handler.response_serializer)
        requests = _parsed(exchange.requests(), handler.request_deserializer)
        try:
            request = requests if handler.request_streaming else await anext(requests)
            if handler.response_streaming:
                await (handler.stream_stream or handler.unary_stream)(request, context)
            else:
                response = await (handler.stream_unary or handler.unary_unary)(request, context)
                exchange.respond(handler.response_serializer(response))
            exchange.finish(Status(grpc.StatusCode.OK))
        except _Aborted:
            pass
        except Exception as error:
            exchange.finish(Status(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"))


async def _parsed(requests: AsyncIterator[bytes], deserialize: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield deserialize(request)
