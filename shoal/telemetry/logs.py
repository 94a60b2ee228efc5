"""Logs: one JSON object per line."""

import json
import logging
from datetime import UTC, datetime

from opentelemetry import trace

# Attributes of every LogRecord. All others come from `extra=` and are fields of the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record: `time`, `level`, `service`, `event`, `logger`, the trace if any, and the fields of `extra=`.

    The event is the logged text. If `extra=` has an `event`, that is the event, and the logged text is the `message`.

    Example: {"time": "2026-01-01T12:00:00.000Z", "level": "INFO", "service": "shoal-reward",
    "event": "registered", "logger": "shoal.worker", "coordinator": "10.0.0.1:7000"}
    """

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "service": self._service_name,
            "event": record.getMessage(),
            "logger": record.name,
        }
        if hasattr(record, "event"):
            fields["message"] = record.getMessage()
        span_context = trace.get_current_span().get_span_context()
        if span_context.is_valid:
            fields["trace_id"] = trace.format_trace_id(span_context.trace_id)
            fields["span_id"] = trace.format_span_id(span_context.span_id)
        fields.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)
