"""The spans of calls, on both ends.

OpenTelemetry's own interceptors for `grpc.aio` leave the spans of cancelled calls open, those of failed ones
without a status, and log an error for each stream that is given up; this is the part of them that Shoal needs.
"""

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from shoal.telemetry import names
from shoal.telemetry.trace import tracer

# Repeated by a clock, so that their spans would bury all others.
_UNTRACED = frozenset({"RegisterWorker", "Heartbeat", "GetStatus"})


def split(method: str) -> tuple[str, str]:
    """ "/package.Service/Method" in two."""
    service, _, name = method.removeprefix("/").partition("/")
    return service, name


def start(method: str, kind: SpanKind, context: Context | None = None) -> Span:
    """Opens the span of a call; it is a child of what `context`, or else the current context, holds."""
    service, name = split(method)
    if name in _UNTRACED:
        return trace.INVALID_SPAN
    return tracer().start_span(
        f"{service}/{name}",
        context,
        kind,
        {names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: service, names.RPC_METHOD: name},
    )


def end(span: Span, code: grpc.StatusCode) -> None:
    """Closes the span of a call that ended so."""
    span.set_attribute(names.RPC_STATUS, code.value[0])
    if code is not grpc.StatusCode.OK:
        span.set_status(Status(StatusCode.ERROR, code.name))
    span.end()
