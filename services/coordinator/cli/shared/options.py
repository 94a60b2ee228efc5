"""Options that several commands of `shoal` share.

`shoal --help` imports every module with commands, so these modules may import only typer at their top. The imports of
gRPC, pydantic, and rich each take several times as long as that of typer, so a command imports these packages when the
command runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from services.coordinator.cli.shared.output import Output
from shoal.errors import InvalidArgument
from shoal.paths import is_path

if TYPE_CHECKING:
    from shoal.v1 import coordinator_pb2 as pb

_RequestT = TypeVar("_RequestT", "pb.StartRunRequest", "pb.UpdateRunConfigRequest")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file, for example configs/quickstart.toml.")]
ConfigFileUnlessResumed = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A TOML file; omit the file with --resume.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=VALUE",
        help="Set one field of a new or resumed run, for example --set run.num_steps=5. Repeatable.",
    ),
]
ResumedRun = Annotated[
    str,
    typer.Option(
        "--resume", metavar="RUN", help="Resume this run, given by its name or folder, from its last checkpoint."
    ),
]
NewName = Annotated[str, typer.Option("--name", help="Name of the new run; the default is run.name with the time.")]
DataDir = Annotated[Path, typer.Option(metavar="FOLDER", envvar="SHOAL_DATA_DIR", help="The folder of all runs.")]


def name_of_run(run: str) -> str:
    """Returns the run's name for a request to a coordinator. Raises `InvalidArgument` for the path of a folder."""
    if is_path(run):
        raise InvalidArgument(
            f"{run!r} is the path of a folder, but a coordinator knows its runs by name: give the name alone; status, "
            "watch and rollouts read a folder without --coordinator"
        )
    return run


RunName = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]", help="The run; the default is the active one.", show_default=False, callback=name_of_run
    ),
]
Coordinator = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", envvar="SHOAL_COORDINATOR", help="The coordinator.", show_default=False),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Format of the result.")]


def command_group(help_text: str) -> typer.Typer:
    """Makes an empty group of commands."""
    # typer's own rendering of help and tracebacks imports rich, which would triple the time that --help takes.
    return typer.Typer(help=help_text, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def checked_address(coordinator: str) -> str:
    """Returns the value of --coordinator. Raises `InvalidArgument` unless it is host:port."""
    host, colon, port = coordinator.rpartition(":")
    if not coordinator:
        raise InvalidArgument(
            "no coordinator is given: use --coordinator HOST:PORT or set SHOAL_COORDINATOR; `shoal train` prints the "
            "address of its coordinator"
        )
    if not (colon and host and port.isdecimal() and int(port) <= 65535):
        raise InvalidArgument(f"--coordinator must be HOST:PORT, such as 10.0.0.1:50050 (given: {coordinator!r})")
    return coordinator


def start_request(config: Path | None, overrides: Sequence[str], *, resume: str, name: str) -> "pb.StartRunRequest":
    """Makes the request of `train` and `run start`. Raises `InvalidArgument` for missing or conflicting options."""
    from shoal.config import load_config
    from shoal.config.load import config_struct
    from shoal.v1 import coordinator_pb2 as pb

    if resume:
        excluded = [option for option, value in (("CONFIG", config), ("--name", name)) if value]
        if excluded:
            raise InvalidArgument(
                f"--resume continues the run under its name with its own configuration: leave out "
                f"{' and '.join(excluded)}; --set changes single fields"
            )
        return resume_request(resume, overrides)
    if config is None:
        raise InvalidArgument(
            "no configuration is given: name a file such as configs/quickstart.toml, or use --resume RUN"
        )
    return pb.StartRunRequest(config=config_struct(load_config(config, overrides)), run_id=name)


def resume_request(run: str, overrides: Sequence[str]) -> "pb.StartRunRequest":
    """Makes the request that resumes a run with changes. Raises `InvalidArgument` for overrides without a value."""
    from shoal.v1 import coordinator_pb2 as pb

    return _with_changes(pb.StartRunRequest(run_id=run, resume=True), overrides)


def update_request(run: str, overrides: Sequence[str]) -> "pb.UpdateRunConfigRequest":
    """Makes the request that changes an active run. Raises `InvalidArgument` for overrides without a value."""
    from shoal.v1 import coordinator_pb2 as pb

    return _with_changes(pb.UpdateRunConfigRequest(run_id=run), overrides)


def _with_changes(request: _RequestT, overrides: Sequence[str]) -> _RequestT:
    from google.protobuf import json_format

    from shoal.config.load import load_overrides

    if overrides:
        json_format.ParseDict(load_overrides(overrides), request.config)
    return request
