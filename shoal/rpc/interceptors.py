"""What surrounds every call that a server takes: its trace, its limit, its errors."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from shoal.errors import Aborted, DataLoss, Internal, InvalidArgument, ResourceExhausted, ShoalError
from shoal.rpc import spans
from shoal.rpc.errors import Abort, internal_status, to_status
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

# Health, reflection and channelz look after themselves.
_INFRASTRUCTURE = "/grpc."

# The work that callers bring in any amount. All else steers or describes the service and has to get through to a
# busy one: heartbeats, status, pause, a new version of the weights.
_LIMITED = frozenset(
    {
        "/shoal.v1.GeneratorService/GenerateGroup",
        "/shoal.v1.GeneratorService/ScoreTokens",
        "/shoal.v1.RewardService/ScoreGroup",
        "/shoal.v1.LearnerService/ComputeLogprobs",
        "/shoal.v1.CoordinatorService/WatchRun",
        "/shoal.v1.CoordinatorService/ListRollouts",
    }
)

_RETRY_AFTER_S = 1.0

# Generic for the type checker only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Continues the caller's trace, refuses calls above the limit, and turns exceptions into statuses.

    One interceptor does all three, because their order matters: the span must be open when the error is mapped, or
    it does not learn how the call ended. Streaming handlers are async generators, and are closed before the call
    ends, so that `finally` in them runs when a caller goes away.
    """

    def __init__(self, max_concurrent_rpcs: int | None = None) -> None:
        self._max_concurrent_rpcs = max_concurrent_rpcs
        self._num_limited = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_INFRASTRUCTURE):
            return handler
        return self._wrap(handler, method)

    def _wrap(self, handler: _Handler, method: str) -> _Handler:
        respond: Any = handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary

        async def unary(request: Any, context: _Context) -> Any:
            async with self._call(method, context):
                return await respond(request, context)

        async def stream(request: Any, context: _Context) -> None:
            async with self._call(method, context), aclosing(respond(request, context)) as responses:
                async for response in responses:
                    await context.write(response)

        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            if handler.request_streaming:
                return grpc.stream_stream_rpc_method_handler(stream, *codec)
            return grpc.unary_stream_rpc_method_handler(stream, *codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(unary, *codec)
        return grpc.unary_unary_rpc_method_handler(unary, *codec)

    @asynccontextmanager
    async def _call(self, method: str, context: _Context) -> AsyncIterator[None]:
        """Everything from the arrival of a call to its status."""
        began = time.monotonic()
        code = grpc.StatusCode.OK
        caller = propagate.extract(dict(context.invocation_metadata() or ()))
        span = spans.start(method, SpanKind.SERVER, caller)
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                with self._within_limit(method):
                    yield
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _was_given_up():
                    code = grpc.StatusCode.CANCELLED
                    raise
                answer = _answer_to(error, method)
                code = answer.code
                await context.abort(*answer)
            finally:
                spans.end(span, code)
                _record_duration(method, code, time.monotonic() - began)

    @contextmanager
    def _within_limit(self, method: str) -> Iterator[None]:
        """Counts the call, or refuses it."""
        limit = self._max_concurrent_rpcs
        if limit is None or method not in _LIMITED:
            yield
            return
        if self._num_limited >= limit:
            raise ResourceExhausted(
                f"{method}: the service works on {limit} such calls already, the most it takes at once",
                reason="TOO_MANY_CALLS",
                metadata={"max_concurrent_rpcs": str(limit)},
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_limited += 1
        try:
            yield
        finally:
            self._num_limited -= 1


def _was_given_up() -> bool:
    """Whether gRPC cancelled the call: its caller went away, its deadline passed, or the server is stopping."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _answer_to(error: BaseException, method: str) -> Abort:
    """The status for what a handler raised, which the log gets too."""
    if isinstance(error, asyncio.CancelledError):
        # The handler waited for something that was cancelled. gRPC would let the caller wait for its deadline.
        return to_status(Aborted(f"{method}: what the call waited for was cancelled"))
    if isinstance(error, DecodeError):
        # The messages of a stream are parsed as the handler asks for them.
        error = InvalidArgument(f"{method}: a message of the call cannot be read: {error}")
    if not isinstance(error, ShoalError):
        _log.error("call failed", extra={"method": method}, exc_info=error)
        return internal_status(method)
    answer = to_status(error)
    level = logging.ERROR if isinstance(error, Internal | DataLoss) else logging.INFO
    facts = {"method": method, "code": answer.code.name, "reason": error.reason, "error": error.message}
    _log.log(level, "call refused", extra=facts)
    return answer


def _record_duration(method: str, code: grpc.StatusCode, duration_s: float) -> None:
    service, name = spans.split(method)
    attributes: dict[str, AttributeValue] = {
        names.RPC_SERVICE: service,
        names.RPC_METHOD: name,
        names.RPC_STATUS: code.value[0],
    }
    metrics.histogram(names.RPC_SERVER_DURATION).record(duration_s, attributes)
