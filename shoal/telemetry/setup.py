"""Setup of telemetry, once in a process."""

import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

import prometheus_client
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import shoal
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.telemetry.logs import JsonFormatter

# By default each exporter retries for 10 s, which is longer than a container has to stop.
_SHUTDOWN_TIMEOUT_S = 3.0

_providers: list[TracerProvider | MeterProvider] = []


def setup(
    service_name: str,
    *,
    instance_id: str = "",
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    log_file: Path | None = None,
) -> None:
    """Sets up logs, traces and metrics of this process; a second call changes nothing.

    `instance_id`, by default host and pid, distinguishes processes of one service. Spans always have ids, which logs
    and the ledger contain. `OTEL_EXPORTER_OTLP_ENDPOINT` exports spans and metrics. `metrics_port` serves Prometheus on
    the interface of `metrics_host` (0 takes a free port, which the log names). Logs go to stderr, or to `log_file`.

    Raises `FailedPrecondition` (PORT_IN_USE, LOG_FILE) and `InvalidArgument` (`SHOAL_LOG_LEVEL`, OTLP without gRPC).
    """
    if _providers:
        return
    _set_up_logs(service_name, log_file)
    resource = Resource.create(
        {
            "service.name": service_name,
            "service.version": shoal.__version__,
            "service.instance.id": instance_id or f"{socket.gethostname()}-{os.getpid()}",
        }
    )
    readers: list[MetricReader] = []
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        _refuse_other_protocols()
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if metrics_port is not None:
        _serve_prometheus(metrics_host, metrics_port)
        readers.append(PrometheusMetricReader())
    meter_provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    trace.set_tracer_provider(tracer_provider)
    metrics.set_meter_provider(meter_provider)
    _providers.extend((tracer_provider, meter_provider))


def shutdown() -> None:
    """Exports the remaining data; abandons it after a few seconds if no collector accepts it."""
    threads = [threading.Thread(target=provider.shutdown, daemon=True) for provider in _providers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    _providers.clear()


def _set_up_logs(service_name: str, log_file: Path | None) -> None:
    level = (os.environ.get("SHOAL_LOG_LEVEL") or "INFO").upper()
    if level not in (levels := logging.getLevelNamesMapping()):
        raise InvalidArgument(f"SHOAL_LOG_LEVEL is {level!r}; set it to one of {', '.join(levels)}")
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise FailedPrecondition(
                f"--log-file: {log_file} cannot be written: {error.strerror}; choose another file",
                reason=ErrorReason.LOG_FILE,
            ) from None
    handler.setFormatter(JsonFormatter(service_name))
    logging.captureWarnings(True)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _refuse_other_protocols() -> None:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if protocol != "grpc":
        raise InvalidArgument(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}, but Shoal sends OTLP over gRPC: unset it, and point "
            "OTEL_EXPORTER_OTLP_ENDPOINT to the collector's gRPC port (commonly 4317)"
        )


def _serve_prometheus(host: str, port: int) -> None:
    try:
        server, _ = prometheus_client.start_http_server(port, host)
    except OSError as error:
        raise FailedPrecondition(
            f"cannot serve Prometheus on port {port}: {error.strerror}; choose another --metrics-port, or 0 for a "
            "free port",
            reason=ErrorReason.PORT_IN_USE,
            metadata={"port": str(port)},
        ) from error
    logging.getLogger(__name__).info("metrics", extra={"port": server.server_port})
