"""Calls of a client: with a deadline, in a trace, and with the errors of the domain."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind

from shoal.errors import Unavailable
from shoal.rpc import spans
from shoal.rpc.errors import from_rpc_error


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
        ending = _Ending(self._method, self._address, timeout)
        if self._streams_requests and request is not None:
            request = ending.requests = _Requests(request)
        span = spans.start(self._method, SpanKind.CLIENT)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        try:
            inner = self._invoke(request, timeout=timeout, metadata=(*(metadata or ()), *carrier.items()), **options)
        except grpc.aio.UsageError:
            spans.end(span, grpc.StatusCode.UNAVAILABLE)
            raise ending.channel_closed() from None
        if span.is_recording():
            inner.add_done_callback(lambda call: _end_span(span, call))
        return Call(inner, ending)


class Call:
    """A call in flight; it offers what `grpc.aio` offers for a call of its kind.

    Awaiting and iterating raise `shoal.errors`, or what the source of its requests raised, or CancelledError after
    `cancel`. A stream of responses that nobody refers to any more is cancelled, so `break` gives it up.
    """

    # The generator must not refer to this object: in a cycle it would live on until the garbage collector comes.
    def __init__(self, inner: Any, ending: "_Ending") -> None:
        self._inner = inner
        self._ending = ending
        self._responses: AsyncIterator[Any] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return _result(self._inner, self._ending).__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._responses is None:
            self._responses = _responses(self._inner, self._ending)
        return self._responses

    async def read(self) -> Any:
        """The next response, or `grpc.aio.EOF`."""
        return await _result(self._inner.read(), self._ending)

    async def write(self, request: Any) -> None:
        """Sends one request of a stream that was called without an iterator."""
        await _result(self._inner.write(request), self._ending)

    async def done_writing(self) -> None:
        """Ends the stream of requests."""
        await _result(self._inner.done_writing(), self._ending)

    async def wait_for_connection(self) -> None:
        """Waits until the peer is connected."""
        await _result(self._inner.wait_for_connection(), self._ending)

    def cancel(self) -> bool:
        """Gives the call up; false if it had ended."""
        self._ending.cancelled_by_caller = True
        return bool(self._inner.cancel())

    def __getattr__(self, name: str) -> Any:
        # cancelled, done, time_remaining, add_done_callback, code, details, initial_metadata, trailing_metadata
        return getattr(self._inner, name)


async def _result(awaitable: Any, ending: "_Ending") -> Any:
    try:
        return await awaitable
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise ending.as_seen_by_caller(error) from None


async def _responses(inner: Any, ending: "_Ending") -> AsyncIterator[Any]:
    try:
        async for response in inner:
            yield response
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise ending.as_seen_by_caller(error) from None
    finally:
        inner.cancel()


@dataclass
class _Ending:
    """What is needed to tell a caller why its call ended."""

    method: str
    address: str
    timeout_s: float
    requests: "_Requests | None" = None
    cancelled_by_caller: bool = False

    def as_seen_by_caller(self, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> BaseException:
        if isinstance(error, grpc.aio.AioRpcError):
            return from_rpc_error(error, method=self.method, address=self.address, timeout_s=self.timeout_s)
        if self.requests is not None and self.requests.failure is not None:
            return self.requests.failure
        task = asyncio.current_task()
        if self.cancelled_by_caller or task is None or task.cancelling():
            return error
        # Closing a channel cancels its calls, which would look to each caller as if its own task were cancelled.
        return self.channel_closed()

    def channel_closed(self) -> Unavailable:
        return Unavailable(f"{self.method}: the channel to {self.address} was closed", reason="CHANNEL_CLOSED")


class _Requests:
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


_span_ends: set[asyncio.Task[None]] = set()


def _end_span(span: Span, call: Any) -> None:
    """Ends the span of a finished call. Its status can only be awaited, so a task does it."""

    async def end() -> None:
        spans.end(span, await call.code())

    task = asyncio.get_running_loop().create_task(end())
    _span_ends.add(task)
    task.add_done_callback(_span_ends.discard)
