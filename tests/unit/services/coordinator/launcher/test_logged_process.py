"""The line of a log that explains the end of its process."""

import pytest

from services.coordinator.launcher.logged_process import best_line
from shoal.telemetry.logs import JsonFormatter
from shoal.worker.lifecycle import Lifecycle

UP, OF_VLLM = '{"level": "INFO", "event": "up"}', "(EngineCore pid=1) ERROR 11-21 failed"
RECORD = '{"level": "ERROR", "event": "died", "exception": "Traceback\\n  x\\nOSError: gone"}'


@pytest.mark.parametrize(
    ("log", "best"),
    [
        ([UP, "ValueError: bad", UP], "ValueError: bad"),
        (["RuntimeError: earlier", RECORD, "bye"], "died: OSError: gone"),
        ([OF_VLLM, "leaked 1 object"], OF_VLLM),
        (["hello", "bye"], "bye"),
        (["ok", UP], "its last log message is: up"),  # A killed process leaves no error.
        ([], ""),
    ],
)
def test_the_best_line_of_a_log_is_the_last_that_reports_an_error(log: list[str], best: str) -> None:
    assert best_line(log) == best


def test_the_best_line_of_a_worker_that_ends_contains_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.worker.lifecycle.os.kill", lambda pid, number: None)
    Lifecycle("the worker").fail("out of memory")
    log = [JsonFormatter("shoal-generator").format(record) for record in caplog.records]
    assert best_line(log).endswith(": out of memory")
