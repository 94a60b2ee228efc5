"""The line of a log that explains the end of its process."""

import pytest

from services.coordinator.launcher.process import best_line
from shoal.telemetry.logs import JsonFormatter
from shoal.worker.lifecycle import Lifecycle


def test_the_best_line_of_a_log_is_the_last_that_reports_an_error() -> None:
    assert best_line(['{"level": "INFO", "event": "up"}', "ValueError: bad", '{"level": "INFO", "event": "bye"}']) == (
        "ValueError: bad"
    )
    record = '{"level": "ERROR", "event": "the engine died", "exception": "Traceback\\n  x\\nOSError: gone"}'
    assert best_line(["RuntimeError: earlier", record, "bye"]) == "the engine died: OSError: gone"
    assert best_line(["(EngineCore pid=1) ERROR 11-21 failed", "leaked 1 object"]) == (
        "(EngineCore pid=1) ERROR 11-21 failed"
    )
    assert best_line(["hello", "bye"]) == "bye"
    assert best_line(["ok", '{"level": "INFO", "event": "weights loaded", "version": "0.71"}']) == (
        "it last logged: weights loaded"
    ), "a killed process leaves no error"
    assert best_line([]) == ""


def test_the_best_line_of_a_worker_that_ends_contains_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.worker.lifecycle.os.kill", lambda pid, number: None)
    Lifecycle("the worker").fail("the engine has died: out of memory")
    log = [JsonFormatter("shoal-generator").format(record) for record in caplog.records]
    assert best_line(log) == "worker ends: the engine has died: out of memory"
