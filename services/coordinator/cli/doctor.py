"""`shoal doctor`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.options import DataDir, OutputOption
from services.coordinator.cli.shared.output import Output, print_json

if TYPE_CHECKING:
    from services.coordinator.launcher.findings import Finding


def doctor(data_dir: DataDir = Path("runs"), output: OutputOption = Output.TABLE) -> None:
    """Show what is installed and what is missing.

    States on which device each service would run, and how to install what is missing.
    """
    from services.coordinator.launcher.findings import examine

    versions, devices, findings = examine(data_dir)
    is_ok = not any(finding.status == "missing" for finding in findings)
    if output is Output.JSON:
        print_json(
            {
                "ok": is_ok,
                "versions": versions,
                "runs_where": devices,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        _print(versions, devices, findings)
        print("all four services can run here" if is_ok else "something is missing: see the findings above")
    raise typer.Exit(ExitCode.OK if is_ok else ExitCode.FAILED)


def _print(versions: Mapping[str, str], devices: Mapping[str, str], findings: Sequence["Finding"]) -> None:
    print("installed")
    for name, version in versions.items():
        print(f"  {name:<14} {version}")
    print("what runs where")
    for service, device in devices.items():
        print(f"  {service:<14} {device}")
    print("findings")
    for finding in findings:
        print(f"  {finding.status:<8} {finding.name}: {finding.detail}")
        if finding.cure:
            print(f"           {finding.cure}")
