"""What surrounds every call that a server takes: its trace, its limit, its errors."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
from opentelemetry import propagate
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from shoal.errors import ResourceExhausted, ShoalError
from shoal.rpc.errors import internal_status, to_status
from shoal.telemetry import metrics, names
from shoal.telemetry.trace import tracer

_log = logging.getLogger(__name__)

# Health, reflection and channelz look after themselves.
_INFRASTRUCTURE = "/grpc."

# These answer however busy the service is: people and the lease depend on them, and they cost nothing.
_ALWAYS_ANSWERED = ("/GetStatus", "/RegisterWorker", "/Heartbeat", "/GetRun", "/ListWorkers", "/StopRun", "/PauseRun")

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
        self._num_active = 0

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
        service, _, name = method.removeprefix("/").partition("/")
        attributes: dict[str, AttributeValue] = {
            names.RPC_SYSTEM: "grpc",
            names.RPC_SERVICE: service,
            names.RPC_METHOD: name,
        }
        began = time.monotonic()
        code = grpc.StatusCode.OK
        with tracer().start_as_current_span(
            method.removeprefix("/"),
            context=propagate.extract(dict(context.invocation_metadata() or ())),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            self._num_active += 1
            try:
                self._admit(method)
                yield
            except asyncio.CancelledError:
                # The caller went away, its deadline passed, or the server is stopping.
                code = grpc.StatusCode.CANCELLED
                raise
            except ShoalError as error:
                abort = to_status(error)
                code = abort.code
                _log.info(
                    "call refused",
                    extra={"method": method, "code": code.name, "reason": error.reason, "error": error.message},
                )
                await context.abort(*abort)
            except grpc.aio.AbortError:
                code = grpc.StatusCode.ABORTED
                raise
            except Exception as error:
                span.record_exception(error)
                _log.exception("call failed", extra={"method": method})
                abort = internal_status(method)
                code = abort.code
                await context.abort(*abort)
            finally:
                self._num_active -= 1
                span.set_attribute(names.RPC_STATUS, code.value[0])
                if code is not grpc.StatusCode.OK:
                    span.set_status(Status(StatusCode.ERROR, code.name))
                metrics.histogram(names.RPC_SERVER_DURATION).record(
                    time.monotonic() - began, attributes | {names.RPC_STATUS: code.value[0]}
                )

    def _admit(self, method: str) -> None:
        limit = self._max_concurrent_rpcs
        if limit is not None and self._num_active > limit and not method.endswith(_ALWAYS_ANSWERED):
            raise ResourceExhausted(
                f"{method}: the service works on {limit} calls already, the most it takes at once",
                reason="TOO_MANY_CALLS",
                metadata={"max_concurrent_rpcs": str(limit)},
                retry_after_s=1.0,
            )
