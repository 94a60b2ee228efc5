"""Calls of a client: with a deadline, in a trace, and with the errors of the domain."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import Any

import grpc
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from shoal.errors import ShoalError
from shoal.rpc.errors import from_rpc_error
from shoal.telemetry import names
from shoal.telemetry.trace import tracer


class Method:
    """One method of a stub. Calling it starts a `Call`."""

    def __init__(self, invoke: Callable[..., Any], *, method: str, address: str, streams_requests: bool) -> None:
        self._invoke = invoke
        self._method = method
        self._address = address
        self._streams_requests = streams_requests

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] | None = None,
        **options: Any,
    ) -> "Call":
        if timeout is None:
            raise ValueError(f"{self._method} was called without a deadline: pass timeout=<seconds>")
        requests = None
        if self._streams_requests and request is not None:
            request = requests = Requests(request)
        span = self._start_span()
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        inner = self._invoke(request, timeout=timeout, metadata=(*(metadata or ()), *carrier.items()), **options)
        if span.is_recording():
            inner.add_done_callback(lambda call: _end_span(span, call))

        def translate(error: grpc.aio.AioRpcError) -> ShoalError:
            return from_rpc_error(error, method=self._method, address=self._address, timeout_s=timeout)

        return Call(inner, translate, requests)

    def _start_span(self) -> Span:
        service, _, name = self._method.removeprefix("/").partition("/")
        return tracer().start_span(
            self._method.removeprefix("/"),
            kind=SpanKind.CLIENT,
            attributes={names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: service, names.RPC_METHOD: name},
        )


class Requests:
    """The requests of a stream, remembering what broke their source.

    gRPC answers such an exception by cancelling the call, and the caller would see itself cancelled.
    """

    def __init__(self, source: AsyncIterable[Any] | Iterable[Any]) -> None:
        self._source = source
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            if isinstance(self._source, AsyncIterable):
                async for request in self._source:
                    yield request
            else:
                for request in self._source:
                    yield request
        except Exception as error:
            self.failure = error
            raise


class Call:
    """A call in flight; what it offers is what `grpc.aio` offers for a call of its kind.

    Awaiting and iterating raise `shoal.errors`, or what the source of its requests raised, or CancelledError after
    `cancel`. Dropping the last reference to a call cancels it.
    """

    def __init__(
        self, inner: Any, translate: Callable[[grpc.aio.AioRpcError], ShoalError], requests: Requests | None
    ) -> None:
        self._inner = inner
        self._translate = translate
        self._requests = requests
        self._responses: AsyncIterator[Any] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return _translated(self._inner, self._translate, self._requests).__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._responses is None:
            self._responses = _responses(self._inner, self._translate, self._requests)
        return self._responses

    async def read(self) -> Any:
        """The next response, or `grpc.aio.EOF`."""
        return await _translated(self._inner.read(), self._translate, self._requests)

    async def write(self, request: Any) -> None:
        """Sends one request of a stream that was called without an iterator."""
        await _translated(self._inner.write(request), self._translate, self._requests)

    async def done_writing(self) -> None:
        """Ends the stream of requests."""
        await self._inner.done_writing()

    async def wait_for_connection(self) -> None:
        """Waits until the peer is connected."""
        await _translated(self._inner.wait_for_connection(), self._translate, self._requests)

    def __getattr__(self, name: str) -> Any:
        # cancel, cancelled, done, time_remaining, add_done_callback, code, details, *_metadata
        return getattr(self._inner, name)


async def _translated(
    awaitable: Any, translate: Callable[[grpc.aio.AioRpcError], ShoalError], requests: Requests | None
) -> Any:
    try:
        return await awaitable
    except grpc.aio.AioRpcError as error:
        raise translate(error) from None
    except asyncio.CancelledError:
        if requests is not None and requests.failure is not None:
            raise requests.failure from None
        raise


async def _responses(
    inner: Any, translate: Callable[[grpc.aio.AioRpcError], ShoalError], requests: Requests | None
) -> AsyncIterator[Any]:
    try:
        async for response in inner:
            yield response
    except grpc.aio.AioRpcError as error:
        raise translate(error) from None
    except asyncio.CancelledError:
        if requests is not None and requests.failure is not None:
            raise requests.failure from None
        raise


_span_ends: set[asyncio.Task[None]] = set()


def _end_span(span: Span, call: Any) -> None:
    """Ends the span of a finished call. Its status can only be awaited, so a task does it."""

    async def end() -> None:
        code = await call.code()
        span.set_attribute(names.RPC_STATUS, code.value[0])
        if code is not grpc.StatusCode.OK:
            span.set_status(Status(StatusCode.ERROR, code.name))
        span.end()

    task = asyncio.get_running_loop().create_task(end())
    _span_ends.add(task)
    task.add_done_callback(_span_ends.discard)
