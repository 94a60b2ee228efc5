import json
import logging

from opentelemetry.sdk.trace import TracerProvider

from shoal.telemetry.logs import JsonFormatter


def line(level=logging.INFO, message="registered", arguments=(), extra=None, exc_info=None):
    logger = logging.getLogger("shoal.test")
    record = logger.makeRecord("shoal.test", level, __file__, 1, message, arguments, exc_info, extra=extra)
    return json.loads(JsonFormatter("shoal-reward").format(record))


def test_a_line_has_time_level_service_event_and_fields():
    fields = line(message="waited %d s", arguments=(3,), extra={"address": "10.0.0.1:7000", "path": logging})
    assert fields["time"].endswith("Z") and len(fields["time"]) == len("2026-01-01T00:00:00.000Z")
    assert (fields["level"], fields["service"], fields["event"]) == ("INFO", "shoal-reward", "waited 3 s")
    assert (fields["logger"], fields["address"]) == ("shoal.test", "10.0.0.1:7000")
    assert isinstance(fields["path"], str), "a value that JSON cannot express was not written as text"
    assert "trace_id" not in fields


def test_a_line_within_a_span_names_the_trace():
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("work") as span:
        fields = line()
    context = span.get_span_context()
    assert (fields["trace_id"], fields["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")


def test_an_exception_stays_on_the_line():
    try:
        raise LookupError("gone")
    except LookupError as error:
        fields = line(exc_info=(type(error), error, error.__traceback__))
    assert "Traceback" in fields["exception"] and "gone" in fields["exception"]


def test_a_line_whose_event_is_a_kind_keeps_the_message():
    fields = line(message="step 3/20: 31.0% correct", extra={"event": "step", "attributes": {"step": 3}})
    assert (fields["event"], fields["message"]) == ("step", "step 3/20: 31.0% correct")
    assert fields["attributes"] == {"step": 3}
