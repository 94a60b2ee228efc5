"""Spans of calls, for clients and servers.

OpenTelemetry's interceptors for `grpc.aio` leave the spans of canceled calls open and leave the spans of failed calls
without a status. The interceptors also log an error for each canceled stream. This module replaces them.
"""

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from shoal.telemetry import names
from shoal.telemetry.trace import TRACER

# Periodic calls. Their spans would outnumber all others.
_UNTRACED = frozenset({"RegisterWorker", "Heartbeat", "GetStatus"})


def split(method: str) -> tuple[str, str]:
    """Splits "/package.Service/Method" into service and method."""
    service, _, name = method.removeprefix("/").partition("/")
    return service, name


def start(method: str, kind: SpanKind, context: Context | None = None) -> Span:
    """Starts the span of a call, as a child of the span in `context`, by default the current context."""
    service, name = split(method)
    if name in _UNTRACED:
        return trace.INVALID_SPAN
    return TRACER.start_span(
        f"{service}/{name}",
        context,
        kind,
        {names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: service, names.RPC_METHOD: name},
    )


def end(span: Span, code: grpc.StatusCode) -> None:
    """Ends the span of a call, with the status of the call."""
    span.set_attribute(names.RPC_STATUS, code.value[0])
    if code is not grpc.StatusCode.OK:
        span.set_status(Status(StatusCode.ERROR, code.name))
    span.end()
