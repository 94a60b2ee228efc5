import json
import os
import subprocess
import sys

import pytest

# A process sets telemetry up once, so each test starts a process.
SCRIPT = """
import logging, time
from shoal.errors import ShoalError
from shoal.telemetry import names, setup, trace
try:
    setup.setup("shoal-test")
    setup.setup("shoal-other")
except ShoalError as error:
    raise SystemExit(str(error))
with trace.span(names.GROUP_ISSUE, parent="") as span:
    logging.getLogger("shoal.test").info("worked", extra={"traceparent": trace.traceparent_of(span)})
began = time.monotonic()
setup.shutdown()
print(time.monotonic() - began)
"""


def run(**environment):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_logs_contain_the_trace_even_where_nothing_is_exported():
    ended = run()
    assert ended.returncode == 0, ended.stderr
    fields = json.loads(ended.stderr)
    assert (fields["service"], fields["event"]) == ("shoal-test", "worked"), "the second setup changed something"
    assert fields["traceparent"].split("-")[1] == fields["trace_id"]


def test_an_absent_collector_does_not_delay_the_end():
    ended = run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 10, f"{ended.stdout.strip()} s; exporters retry for 10 s each"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SHOAL_LOG_LEVEL": "chatty"}, ("SHOAL_LOG_LEVEL", "'CHATTY'", "WARNING")),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "'http/protobuf'", "4317"),
        ),
    ],
)
def test_a_bad_variable_is_refused_with_the_fix(environment, words):
    ended = run(**environment)
    assert ended.returncode == 1
    assert all(word in ended.stderr for word in words), ended.stderr
