"""An OpenTelemetry collector in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SeenSpan:
    """A span as it arrived; ids in hex, `parent_id` empty for a root."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_error: bool
    attributes: dict[str, str] = field(hash=False)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[SeenSpan] = []
        self.metrics: set[tuple[str, str]] = set()
        """Service and name of each metric."""

    async def Export(self, request, context):
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            self.spans += [
                SeenSpan(
                    service=service,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                    attributes=_attributes(span.attributes),
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return trace_service_pb2.ExportTraceServiceResponse()

    def one(self, name: str, *, service: str = "") -> SeenSpan:
        found = [span for span in self.spans if span.name == name and service in ("", span.service)]
        assert len(found) == 1, f"{len(found)} spans {name!r} of {service!r} among {self.spans}"
        return found[0]


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request, context):
        self._collector.metrics |= {
            (_attributes(resource.resource.attributes)["service.name"], metric.name)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _attributes(pairs) -> dict[str, str]:
    return {pair.key: str(getattr(pair.value, pair.value.WhichOneof("value"))) for pair in pairs}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector while the block runs; `OTEL_EXPORTER_OTLP_ENDPOINT` is its `endpoint`."""
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.endpoint = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(grace=0)
