"""Calls of a client, with a deadline, a trace, and the errors of the domain."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import grpc
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind

from shoal.error_reasons import ErrorReason
from shoal.errors import ShoalError, Unavailable
from shoal.rpc import spans
from shoal.rpc.errors import from_rpc_error

_T = TypeVar("_T")

_STATUS_FOLLOWS_S = 1.0
# Ten years. gRPC treats a deadline beyond the range of its clock as already passed.
_MAX_TIMEOUT_S = 10 * 365 * 86400.0


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
        timeout = min(timeout, _MAX_TIMEOUT_S)
        span = spans.start(self._method, SpanKind.CLIENT)
        ending = _Ending(self._method, self._address, timeout, span)
        if self._streams_requests and request is not None:
            request = ending.requests = _Requests(request)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        try:
            inner = self._invoke(request, timeout=timeout, metadata=(*(metadata or ()), *carrier.items()), **options)
        except grpc.aio.UsageError:
            spans.end(span, grpc.StatusCode.UNAVAILABLE)
            raise ending.channel_closed() from None
        inner.add_done_callback(ending.record)
        if ending.requests is not None:
            inner.add_done_callback(ending.requests.end)
        return Call(inner, ending)


class Call:
    """A call in flight, with the methods of the matching call class of `grpc.aio`.

    Awaiting and iterating raise `shoal.errors`, the error of the source of the requests, or CancelledError after
    `cancel`. A stream of responses is canceled with its last reference, so `break` cancels the stream.
    """

    # The generator must not refer to this object: a cycle would keep both alive until the next garbage collection.
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
        """Returns the next response, or `grpc.aio.EOF`."""
        return await _result(self._inner.read(), self._ending)

    async def write(self, request: Any) -> None:
        """Sends one request of a call that was made without an iterator."""
        await _result(self._inner.write(request), self._ending)

    async def done_writing(self) -> None:
        """Ends the stream of requests."""
        await _result(self._inner.done_writing(), self._ending)

    async def wait_for_connection(self) -> None:
        """Waits until the peer is connected."""
        await _result(self._inner.wait_for_connection(), self._ending)

    def cancel(self) -> bool:
        """Cancels the call. Returns False if the call has already ended."""
        self._ending.canceled_by_caller = True
        return bool(self._inner.cancel())

    def __getattr__(self, name: str) -> Any:
        # cancelled, done, time_remaining, add_done_callback, code, details, initial_metadata, trailing_metadata
        return getattr(self._inner, name)


async def _result(awaitable: Any, ending: "_Ending") -> Any:
    try:
        return await awaitable
    except grpc.aio.AioRpcError as error:
        raise ending.translated(await ending.peer_status(error)) from None
    except asyncio.CancelledError as error:
        raise ending.cancellation_error(error) from None


async def _responses(inner: Any, ending: "_Ending") -> AsyncIterator[Any]:
    try:
        async for response in inner:
            yield response
    except grpc.aio.AioRpcError as error:
        status = await ending.peer_status(error)
        if status.code() is not grpc.StatusCode.OK:
            raise ending.translated(status) from None
    except asyncio.CancelledError as error:
        raise ending.cancellation_error(error) from None
    finally:
        inner.cancel()


class _Ending:
    """The end of a call: its status, and the error for its caller."""

    def __init__(self, method: str, address: str, timeout_s: float, span: Span) -> None:
        self.requests: _Requests | None = None
        self.canceled_by_caller = False
        self._method = method
        self._address = address
        self._timeout_s = timeout_s
        self._span = span
        self._status: grpc.aio.AioRpcError | None = None
        self._known = asyncio.Event()

    def record(self, call: Any) -> None:
        """Records the status that gRPC has set. gRPC sets it again when a write finds that the call has ended."""
        status = grpc.aio.AioRpcError(
            _now(call.code()), trailing_metadata=_now(call.trailing_metadata()), details=_now(call.details())
        )
        if self._status is None and not _is_failed_write(status):
            self._end(status)

    async def peer_status(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Returns the status that the peer sent, if gRPC reports a failed write instead.

        A peer may end a call while its requests are still being sent. The next write then fails, and `grpc.aio`
        replaces the peer's status, whether it has arrived or not, by INTERNAL (grpc issue 36066).
        """
        if not _is_failed_write(error):
            return error
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), _STATUS_FOLLOWS_S)
        if self._status is None:
            self._end(error)
        return self._status or error

    def _end(self, status: grpc.aio.AioRpcError) -> None:
        self._status = status
        self._known.set()
        spans.end(self._span, status.code())

    def translated(self, error: grpc.aio.AioRpcError) -> ShoalError:
        """Returns the error of the domain."""
        return from_rpc_error(error, method=self._method, address=self._address, timeout_s=self._timeout_s)

    def cancellation_error(self, error: asyncio.CancelledError) -> BaseException:
        """Returns CancelledError if the caller canceled the call or its task, else the error that canceled the call."""
        if self.requests is not None and self.requests.failure is not None:
            return self.requests.failure
        task = asyncio.current_task()
        if self.canceled_by_caller or task is None or task.cancelling():
            return error
        # Closing a channel cancels its calls. Each caller would mistake that for a cancellation of its task.
        return self.channel_closed()

    def channel_closed(self) -> Unavailable:
        """Returns the error of a call on a closed channel."""
        return Unavailable(
            f"{self._method}: the channel to {self._address} was closed", reason=ErrorReason.CHANNEL_CLOSED
        )


def _is_failed_write(status: grpc.aio.AioRpcError) -> bool:
    return status.code() is grpc.StatusCode.INTERNAL and status.details() == "Internal error from Core"


def _now(known: Coroutine[Any, Any, _T]) -> _T:
    """Returns the result of a coroutine that does not wait, for a callback that cannot wait."""
    try:
        known.send(None)
    except StopIteration as returned:
        result: _T = returned.value
        return result
    raise RuntimeError("the call has ended, but its status is not known")


class _Requests:
    """The requests of a stream, and the error of their source.

    gRPC cancels the call after such an error, and the caller would mistake this cancellation for its own.
    """

    def __init__(self, source: AsyncIterable[Any] | Iterable[Any]) -> None:
        self._source = source
        self.failure: Exception | None = None
        self._reader: asyncio.Task[Any] | None = None
        """The task of gRPC that reads the requests."""
        self._has_ended = False

    def end(self, _: Any) -> None:
        """Ends the source with its call. When the peer ends the call, gRPC leaves the reader waiting for the next
        request. Once the reader is garbage-collected, asyncio would report an error."""
        self._has_ended = True
        if self._reader is not None:
            self._reader.cancel()

    async def __aiter__(self) -> AsyncIterator[Any]:
        self._reader = asyncio.current_task()
        if self._has_ended:
            return
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
