"""The server side of calls in memory: the handlers of generated stubs, behind the interceptor of every real server."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shoal.rpc.auth import credentials as auth
from shoal.rpc.interceptors import ServiceInterceptor
from tests.simulation.network.exchange import Exchange, Status
from tests.simulation.virtual_time import Process


class _Aborted(Exception):
    """The handler has sent its status."""


class _Context:
    """The context of one call, as handlers and the interceptor use it."""

    def __init__(self, exchange: Exchange, serialize: Any) -> None:
        self._exchange = exchange
        self._serialize = serialize

    def invocation_metadata(self) -> Any:
        return self._exchange.metadata

    async def write(self, response: Any) -> None:
        await asyncio.sleep(0)
        self._exchange.respond(self._serialize(response))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._exchange.finish(Status(code, details, tuple(trailing_metadata)))
        raise _Aborted


class Server:
    """The services of one process at one address."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._handlers: list[Any] = []
        self._interceptor = ServiceInterceptor(auth.Credentials())
        self._known: dict[str, Any] = {}
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self)

    async def set_serving(self, name: str) -> None:
        """Shows a service, or a worker by its id, as healthy."""
        await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    # What generated code calls.

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
        """Begins to handle a call."""
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
