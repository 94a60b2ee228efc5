"""The report of a run as a file, for the commands that write a report at their end."""

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import DataLoss, FailedPrecondition, ShoalError

if TYPE_CHECKING:
    from services.coordinator.cli.shared.progress import ProgressView
    from services.coordinator.store.run_record import RunRecord

REPORT = "report.html"


def write_report(record: "RunRecord", output: Path | None = None) -> Path:
    """Writes the report of a run, and returns its path. Raises `ShoalError` if the report cannot be written."""
    from services.coordinator.reporting.page.page import render
    from services.coordinator.reporting.page.run_view import view_run
    from services.coordinator.store.files.atomic_write import write_atomically
    from shoal.error_reasons import ErrorReason

    path = (output or record.folder / REPORT).absolute()
    try:
        html = render(view_run(record))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise DataLoss(
            f"the report cannot be made from {record.folder}: a value in its files is damaged "
            f"({type(error).__name__}: {error}); look at metrics.jsonl and evaluations.jsonl"
        ) from error
    try:
        write_atomically(path, html)
    except ShoalError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.message
        raise FailedPrecondition(
            f"the report cannot be written to {path}: {why}; name another file with --output",
            reason=ErrorReason.FOLDER,
        ) from None
    return path


def show_report(folder: Path, view: "ProgressView") -> None:
    """Writes the report of a run, and shows its path. Does nothing if the run has no record: it was never accepted."""
    from services.coordinator.store.run_record import RECORD, RunRecord

    if not (folder / RECORD).exists():
        return
    try:
        view.write(f"the report, for a browser: {write_report(RunRecord.load(folder))}", "notice")
    except Exception as error:  # A run must not seem to have failed because its report did.
        view.write(f"the report could not be written: {error}", "error")
