"""Calls of a client: with a deadline, in a trace, and with the errors of the domain."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import grpc
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind

from shoal.errors import ShoalError, Unavailable
from shoal.rpc import spans
from shoal.rpc.errors import from_rpc_error

_T = TypeVar("_T")

_STATUS_FOLLOWS_S = 1.0
# Ten years. gRPC takes a deadline that is too far away for its clock as one that has passed.
_LONGEST_TIMEOUT_S = 10 * 365 * 86400.0


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
        timeout = min(timeout, _LONGEST_TIMEOUT_S)
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
        inner.add_done_callback(ending.note)
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
    except grpc.aio.AioRpcError as error:
        raise ending.translated(await ending.told_by_peer(error)) from None
    except asyncio.CancelledError as error:
        raise ending.why_cancelled(error) from None


async def _responses(inner: Any, ending: "_Ending") -> AsyncIterator[Any]:
    try:
        async for response in inner:
            yield response
    except grpc.aio.AioRpcError as error:
        told = await ending.told_by_peer(error)
        if told.code() is not grpc.StatusCode.OK:
            raise ending.translated(told) from None
    except asyncio.CancelledError as error:
        raise ending.why_cancelled(error) from None
    finally:
        inner.cancel()


class _Ending:
    """How a call ended, and what its caller has to hear about it."""

    def __init__(self, method: str, address: str, timeout_s: float, span: Span) -> None:
        self.requests: _Requests | None = None
        self.cancelled_by_caller = False
        self._method = method
        self._address = address
        self._timeout_s = timeout_s
        self._span = span
        self._status: grpc.aio.AioRpcError | None = None
        self._known = asyncio.Event()

    def note(self, call: Any) -> None:
        """gRPC has set the call's status. It may do so again, when a write finds the call ended (see below)."""
        status = grpc.aio.AioRpcError(
            _now(call.code()), trailing_metadata=_now(call.trailing_metadata()), details=_now(call.details())
        )
        if self._status is None and not _is_failed_write(status):
            self._end(status)

    async def told_by_peer(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The status that the peer gave, where gRPC reports the failure of a write instead.

        A peer may end a call while its requests are still being sent. The next write then fails, and `grpc.aio`
        puts INTERNAL over the status that has come or is about to come (grpc issue 36066).
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
        """The error of the domain."""
        return from_rpc_error(error, method=self._method, address=self._address, timeout_s=self._timeout_s)

    def why_cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """CancelledError if the caller asked for it, in one way or the other; else what is behind it."""
        if self.requests is not None and self.requests.failure is not None:
            return self.requests.failure
        task = asyncio.current_task()
        if self.cancelled_by_caller or task is None or task.cancelling():
            return error
        # Closing a channel cancels its calls, which would look to each caller as if its own task were cancelled.
        return self.channel_closed()

    def channel_closed(self) -> Unavailable:
        """The error of a call on a channel that was closed."""
        return Unavailable(f"{self._method}: the channel to {self._address} was closed", reason="CHANNEL_CLOSED")


def _is_failed_write(status: grpc.aio.AioRpcError) -> bool:
    return status.code() is grpc.StatusCode.INTERNAL and status.details() == "Internal error from Core"


def _now(known: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that has nothing to wait for, for a callback that cannot wait."""
    try:
        known.send(None)
    except StopIteration as returned:
        result: _T = returned.value
        return result
    raise RuntimeError("the call has ended, but its status is not known")


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
