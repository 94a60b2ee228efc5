"""`shoal report`."""

from pathlib import Path
from typing import Annotated

import typer

from services.coordinator.cli.shared.options import DataDir
from services.coordinator.cli.shared.report_file import REPORT, write_report


def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="The run, or the path of its folder; the default is the newest.", show_default=False
        ),
    ] = "",
    data_dir: DataDir = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help=f"The file to write; the default is {REPORT} in the run's folder."
        ),
    ] = None,
) -> None:
    """Write a run's report, an HTML page.

    The page has curves, evaluations, and the last completions. It is made from the run's folder, needs no coordinator,
    and loads nothing from a network.
    """
    from services.coordinator.store.run_folders import RunFolders, locate_run

    data_dir, run = locate_run(run, data_dir)
    record = RunFolders(data_dir).find(run)
    print(f"the report: {write_report(record, output)}")
