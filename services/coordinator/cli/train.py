"""`shoal train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.coordinator.cli.shared.options import (
    ConfigFileUnlessResumed,
    DataDir,
    NewName,
    Overrides,
    ResumedRun,
    start_request,
)

if TYPE_CHECKING:
    from shoal.config import RunConfig


def train(
    config: ConfigFileUnlessResumed = None,
    overrides: Overrides = None,
    resume: ResumedRun = "",
    name: NewName = "",
    data_dir: DataDir = Path("runs"),
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Keep out other users of this machine: every call then needs a token, which this command makes.",
        ),
    ] = False,
) -> None:
    """Train on this machine. Starts all four services, shows progress, and then ends the services.

    Ctrl-C writes a checkpoint and stops the run. A second Ctrl-C ends everything at once.
    """
    from services.coordinator.cli.env.requests import check_environments_here
    from services.coordinator.cli.reward_process import check_custom_verifiers, check_reward_servers
    from services.coordinator.cli.shared.progress import ProgressView
    from services.coordinator.cli.shared.report_file import show_report
    from services.coordinator.cli.train_session import TrainSession
    from services.coordinator.launcher.local_run import prepare_local_run
    from services.coordinator.launcher.supervisor import ProcessDied
    from services.coordinator.store.run_folders import locate_run

    def check_code(config: "RunConfig") -> None:
        check_reward_servers(config, asks=False)
        check_custom_verifiers(config)
        check_environments_here(config)

    view = ProgressView(outlives_output=True)
    data_dir, resume = locate_run(resume, data_dir)
    request = start_request(config, overrides or [], resume=resume, name=name)
    view.write("checking configuration, machine and model")
    with view.showing_logs("shoal.models"), view.showing_logs("services.coordinator.remote"):
        run = prepare_local_run(request, data_dir, check_code)
    view.write(f"model {run.config.model.path}: {run.model_folder}")
    for note in run.notes:
        view.write(f"note: {note}", "notice")
    is_new = not run.folder.exists()
    with run.held():
        try:
            raise typer.Exit(TrainSession(run, view, private=private).train())
        except ProcessDied:
            is_new = False  # Keep the logs: the message names a log with more details.
            raise
        finally:
            if is_new:
                run.remove_unless_accepted()
            show_report(run.folder, view)
