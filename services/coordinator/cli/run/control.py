"""`shoal run start | pause | resume | update | stop | checkpoint | evaluate | profile`: control runs."""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from services.coordinator.cli.run.printing import has_ended, print_changes, print_run
from services.coordinator.cli.run.sources import CoordinatorSource
from services.coordinator.cli.run.views import watch_run
from services.coordinator.cli.shared.options import (
    ConfigFileUnlessResumed,
    Coordinator,
    NewName,
    OutputOption,
    Overrides,
    RunName,
    checked_address,
    name_of_run,
    resume_request,
    start_request,
    update_request,
)
from services.coordinator.cli.shared.output import Output, print_message, print_pairs
from shoal.quantities import counted, format_range

_ResumedRun = Annotated[
    str,
    typer.Option("--resume", metavar="RUN", help="Resume this run from its last checkpoint.", callback=name_of_run),
]


class Mode(StrEnum):
    """How `run stop` ends a run."""

    NOW = "now"
    DRAIN = "drain"


def start(
    coordinator: Coordinator = "",
    config: ConfigFileUnlessResumed = None,
    overrides: Overrides = None,
    resume: _ResumedRun = "",
    name: NewName = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show progress until the run ends.")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="If another run is active, wait for its end.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start or resume a run on the coordinator's workers."""
    from services.coordinator import client

    request = start_request(config, overrides or [], resume=resume, name=name)
    request.queue = queue
    address = checked_address(coordinator)
    run = client.start_run(address, request)
    if watch:
        raise typer.Exit(watch_run(CoordinatorSource(address), run.run_id, 0, output, with_report=True))
    print_run(run, output)


def pause(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Pause a run. Sampling stops at its current token, no prompt is issued, and no step begins."""
    from services.coordinator import client

    print_run(client.pause_run(checked_address(coordinator), run), output)


def resume(
    run: RunName = "",
    coordinator: Coordinator = "",
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Continue a paused run, or resume one that has ended.

    A run that has ended continues from its last checkpoint; --set changes its configuration.
    """
    from services.coordinator import client
    from shoal.errors import FailedPrecondition

    address = checked_address(coordinator)
    if run and has_ended(client.get_run(address, run)):
        print_run(client.start_run(address, resume_request(run, overrides or [])), output)
    elif overrides:
        raise FailedPrecondition(
            "--set needs the name of a run that has ended, which is then resumed; to change an active run: "
            + shlex.join(
                ["shoal", "run", "update", *([run] if run else []), *_set(overrides), "--coordinator", address]
            )
        )
    else:
        print_run(client.resume_run(address, run), output)


def update(
    run: RunName = "",
    coordinator: Coordinator = "",
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the configuration of an active run. Fields of --set take effect at once or from the next step on."""
    from services.coordinator import client
    from shoal.errors import InvalidArgument

    if not overrides:
        raise InvalidArgument("no change is given: add --set, for example --set learner.learning_rate=2e-6")
    response = client.update_run_config(checked_address(coordinator), update_request(run, overrides))
    if output is Output.TABLE:
        print_changes(response.changes)
    print_run(response.run, output)


def stop(
    run: RunName = "",
    coordinator: Coordinator = "",
    mode: Annotated[
        Mode,
        typer.Option(
            help="now: end at the next step boundary; drain: first train on groups in flight, evaluate, and export "
            "the model."
        ),
    ] = Mode.NOW,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a run, with a checkpoint."""
    from services.coordinator import client

    print_run(client.stop_run(checked_address(coordinator), run, drain=mode is Mode.DRAIN), output)


def checkpoint(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Write a checkpoint at the next step boundary. Waits until the checkpoint is written."""
    from services.coordinator import client

    response = client.save_checkpoint(checked_address(coordinator), run)
    if output is Output.JSON:
        print_message(response)
    else:
        print(f"checkpoint {response.checkpoint_id} of step {response.policy_version} is written")


def evaluate(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Evaluate the policy on the held-out questions. Waits for the next step boundary and the result."""
    from services.coordinator import client

    response = client.evaluate(checked_address(coordinator), run)
    if output is Output.JSON:
        print_message(response)
        return
    print(
        f"the policy of step {response.version.policy_version} answered {counted(response.num_prompts, 'question')}; "
        f"number of scored answers: {response.num_scored}"
    )
    print_pairs([(name, f"{value:g}") for name, value in sorted(response.metrics.items())])


def profile(
    run: RunName = "",
    coordinator: Coordinator = "",
    steps: Annotated[int, typer.Option("--steps", help="Number of train steps, 1 to 10.")] = 2,
    output: OutputOption = Output.TABLE,
) -> None:
    """Record train steps with torch's profiler. Waits for the trace file of each rank."""
    from services.coordinator import client

    response = client.profile_run(checked_address(coordinator), run, steps)
    if output is Output.JSON:
        print_message(response)
        return
    recorded = format_range("train step", response.first_step, response.last_step)
    print(f"recorded {recorded}; https://ui.perfetto.dev shows the files:")
    print("\n".join(response.paths))
    if response.is_partial:
        last = response.last_step
        print(f"the files end within step {last} or soon after it, since a recording has a limited number of rows")


def _set(overrides: Sequence[str]) -> list[str]:
    return [argument for override in overrides for argument in ("--set", override)]
