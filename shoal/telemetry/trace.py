"""Spans, and the W3C traceparent that carries a trace between processes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

_PROPAGATOR = TraceContextTextMapPropagator()

TRACER = trace.get_tracer("shoal")
"""The tracer of this process. After `setup`, the tracer belongs to the provider that `setup` sets."""


def traceparent_of(span: Span) -> str:
    """Returns the traceparent of a span: "00-<trace id>-<span id>-01"; empty before `setup`."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def context_from(traceparent: str) -> Context:
    """Returns a context for children of the span `traceparent`; an empty context if the text is empty or malformed."""
    return _PROPAGATOR.extract({"traceparent": traceparent}, Context())


def trace_id_of(span: Span) -> str:
    """Returns the trace id of a span, 32 hex digits; all 0 before `setup`."""
    return trace.format_trace_id(span.get_span_context().trace_id)


@contextmanager
def span(name: str, *, parent: str | None = None, **attributes: AttributeValue) -> Iterator[Span]:
    """Opens a span and makes it current. An exception marks it as failed and propagates.

    `parent` is a traceparent. None means the current span, and an empty text starts a new trace. Attributes are
    exported under "shoal.": `span(names.GROUP_SAMPLE, parent=group.traceparent, group_id="g17")`.
    """
    with TRACER.start_as_current_span(
        name,
        context=None if parent is None else context_from(parent),
        attributes=_attributes(attributes),
    ) as opened:
        yield opened


def past_span(
    name: str, *, parent: str, duration_s: float, ended_s_ago: float = 0.0, **attributes: AttributeValue
) -> str:
    """Adds a span that has ended to the trace of `parent`, and returns its traceparent.

    Use it for work that belongs to many traces, such as a train step, and for work that another process has timed.
    """
    end_ns = time.time_ns() - round(ended_s_ago * 1e9)
    opened = TRACER.start_span(
        name,
        context=context_from(parent),
        attributes=_attributes(attributes),
        start_time=end_ns - round(duration_s * 1e9),
    )
    opened.end(end_ns)
    return traceparent_of(opened)


def _attributes(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {f"shoal.{key}": value for key, value in attributes.items()}
