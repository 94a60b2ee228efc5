"""The server side of every call: trace, permission, limits, errors."""

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, DataLoss, DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted, ShoalError
from shoal.quantities import counted
from shoal.rpc import spans
from shoal.rpc.audit import AUDITED, Receive, Record, audited
from shoal.rpc.auth.callers import authorize
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import OPEN_SERVICE
from shoal.rpc.errors import Abort, internal_status, to_status
from shoal.rpc.limits import ServerLimits
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

# Health, reflection and channelz handle their own errors.
_INFRASTRUCTURE = "/grpc."

_RETRY_AFTER_S = 1.0

# These are generic only for the type checker.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Continues the caller's trace, refuses callers without permission and calls above the limits, and turns exceptions
    into statuses.

    One interceptor does all this because the order matters. The span must be open when the error becomes a status, to
    get the status. Callers must be refused before their request is read. Streaming handlers are async generators and
    are closed before the call ends, so that the generators' `finally` runs when a caller disconnects.
    """

    def __init__(self, credentials: Credentials, limits: ServerLimits, audit: Record | None = None) -> None:
        """`audit` gets every call that only operators may make."""
        self._credentials = credentials
        self._audit = audit
        self._limits = limits
        self._num_calls: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        return self._guard(handler, method) if method.startswith(_INFRASTRUCTURE) else self._wrap(handler, method)

    def _guard(self, handler: _Handler, method: str) -> _Handler:
        """Adds only the check of the caller and the limits to a handler of gRPC's own packages."""
        respond = _respond_of(handler)

        @asynccontextmanager
        async def checked(context: _Context) -> AsyncIterator[None]:
            try:
                if not method.startswith(OPEN_SERVICE):
                    authorize(method, context, self._credentials)
                with self._within_limit(method):
                    yield
            except (ShoalError, DecodeError) as error:
                await context.abort(*_status_for(error, method))

        async def unary(receive: Receive, context: _Context) -> Any:
            async with checked(context):
                response = respond(await receive(), context)
                return await response if inspect.isawaitable(response) else response

        async def stream(receive: Receive, context: _Context) -> None:
            async with checked(context):
                responses = respond(await receive(), context)
                if inspect.isawaitable(responses):  # Health writes its responses itself.
                    await responses
                    return
                async for response in responses:
                    await context.write(response)

        return self._receiving(handler, method, unary, stream)

    def _wrap(self, handler: _Handler, method: str) -> _Handler:
        respond = _respond_of(handler)

        async def unary(receive: Receive, context: _Context) -> Any:
            async with self._call(method, context):
                request = await receive()
                with self._within_limit(method):
                    return await respond(request, context)

        async def stream(receive: Receive, context: _Context) -> None:
            async with self._call(method, context):
                request = await receive()
                with self._within_limit(method):
                    async with aclosing(respond(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)

        answer = unary if self._audit is None or method not in AUDITED else audited(unary, method, self._audit)
        return self._receiving(handler, method, answer, stream)

    def _receiving(self, handler: _Handler, method: str, unary: Any, stream: Any) -> _Handler:
        """Returns a handler that begins before its request has arrived; `unary` or `stream` reads the request.

        With such a handler gRPC sees all requests as streams. Otherwise gRPC would read and parse a single request
        before Shoal's code runs, even for callers without permission, and wait for the request forever.
        """

        def receiver(requests: AsyncIterator[Any]) -> Receive:
            receive = self._receive_stream if handler.request_streaming else self._receive_one
            return lambda: receive(requests, method)

        async def receiving_unary(requests: AsyncIterator[Any], context: _Context) -> Any:
            return await unary(receiver(requests), context)

        async def receiving_stream(requests: AsyncIterator[Any], context: _Context) -> None:
            await stream(receiver(requests), context)

        codec = (handler.request_deserializer, _unless_serialized(handler.response_serializer))
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(receiving_stream, *codec)
        return grpc.stream_unary_rpc_method_handler(receiving_unary, *codec)

    async def _receive_one(self, requests: AsyncIterator[Any], method: str) -> Any:
        """Returns a call's only request. Raises `DeadlineExceeded` if it is late, `InvalidArgument` if there is
        none."""
        try:
            return await self._receive_first(requests, f"{method}: the request")
        except StopAsyncIteration:
            raise InvalidArgument(f"{method}: the call ended without a request") from None

    async def _receive_stream(self, requests: AsyncIterator[Any], method: str) -> AsyncIterator[Any]:
        """Returns the requests of a call. Reading the first raises `DeadlineExceeded` if it is late."""
        return _Stream(requests, partial(self._receive_first, requests, f"{method}: the first message of the stream"))

    async def _receive_first(self, requests: AsyncIterator[Any], what: str) -> Any:
        timeout_s = self._limits.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(requests)
        except TimeoutError:
            raise DeadlineExceeded(f"{what} did not arrive within {timeout_s:g} s") from None

    @asynccontextmanager
    async def _call(self, method: str, context: _Context) -> AsyncIterator[None]:
        began = time.monotonic()
        code = grpc.StatusCode.OK
        caller = propagate.extract(dict(context.invocation_metadata() or ()))
        span = spans.start(method, SpanKind.SERVER, caller)
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                authorize(method, context, self._credentials)
                yield
            except grpc.aio.InternalError:
                code = grpc.StatusCode.CANCELLED  # A response could not be sent: the caller is gone.
                raise asyncio.CancelledError from None
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _was_canceled_by_grpc():
                    code = grpc.StatusCode.CANCELLED
                    raise
                status = _status_for(error, method)
                code = status.code
                await context.abort(*status)
            finally:
                spans.end(span, code)
                _record_duration(method, code, time.monotonic() - began)

    @contextmanager
    def _within_limit(self, method: str) -> Iterator[None]:
        """Counts the call. Raises `ResourceExhausted` above the limit."""
        limit = self._limits.calls.get(method)
        if limit is None:
            yield
            return
        if self._num_calls[method] >= limit:
            raise ResourceExhausted(
                f"{method}: {counted(limit, 'call')} of this method is the maximum at a time; call again later",
                reason=ErrorReason.TOO_MANY_CALLS,
                metadata={"max_calls": str(limit)},
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_calls[method] += 1
        try:
            yield
        finally:
            self._num_calls[method] -= 1


class _Stream:
    """The requests of a call. A different function receives the first request."""

    def __init__(self, requests: AsyncIterator[Any], receive_first: Callable[[], Awaitable[Any]]) -> None:
        self._requests = requests
        self._receive = receive_first

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        receive, self._receive = self._receive, partial(anext, self._requests)
        return await receive()


def _respond_of(handler: _Handler) -> Any:
    return handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary


def _unless_serialized(serialize: Any) -> Any:
    """Returns a serializer that passes on responses that a handler has already serialized for several calls."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)


def _was_canceled_by_grpc() -> bool:
    """Returns whether gRPC canceled the call: the caller disconnected, the deadline passed, or the server stops."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _status_for(error: BaseException, method: str) -> Abort:
    """Returns the status for an error of a handler, and logs the error."""
    if isinstance(error, asyncio.CancelledError):
        # The handler awaited a task that was canceled. Without a status the caller would wait for its deadline.
        return to_status(Aborted(f"{method}: the work that the call waited for was canceled"))
    if isinstance(error, DecodeError):
        # The messages of a stream are parsed when the handler reads them.
        error = InvalidArgument(f"{method}: a message of the call cannot be read: {error}")
    if not isinstance(error, ShoalError):
        _log.error("call failed", extra={"method": method}, exc_info=error)
        return internal_status(method)
    status = to_status(error)
    level = logging.ERROR if isinstance(error, Internal | DataLoss) else logging.INFO
    facts = {"method": method, "code": status.code.name, "reason": error.reason, "error": error.message}
    _log.log(level, "call refused", extra=facts)
    return status


def _record_duration(method: str, code: grpc.StatusCode, duration_s: float) -> None:
    service, name = spans.split(method)
    attributes: dict[str, AttributeValue] = {
        names.RPC_SERVICE: service,
        names.RPC_METHOD: name,
        names.RPC_STATUS: code.value[0],
    }
    metrics.histogram(names.RPC_SERVER_DURATION).record(duration_s, attributes)
