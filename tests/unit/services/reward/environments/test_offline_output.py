"""What `shoal config check --deep`, `shoal train` and `shoal env check` show of what environments print."""

import logging

from services.reward.environments.offline import FirstLines
from services.reward.pool import output


def _record(text: str, level: int = logging.INFO, name: str = output.__name__) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, text, (), None)


def test_of_what_environments_print_the_first_lines_are_shown_and_every_error() -> None:
    lines, shown = FirstLines(), list[str]()
    records = [_record(f"files: {number}") for number in range(200)]
    records += [_record("files raised", logging.ERROR), _record("of another module", name="services.reward.other")]
    for record in records:
        if lines.filter(record):
            shown.append(record.getMessage())
    assert shown[:40] == [f"files: {number}" for number in range(40)], shown
    assert "left out" in shown[40] and shown[41:] == ["files raised", "of another module"], shown[40:]
