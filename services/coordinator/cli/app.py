"""The commands of `shoal` with their options; what they do is in the modules beside this one.

Nothing that takes time is imported here but typer: gRPC, pydantic and rich cost ten times what `shoal --help` may take.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.coordinator.cli.exit_codes import ExitCode, exit_code_of
from services.coordinator.cli.output import Output
from shoal.errors import InvalidArgument, ShoalError


class StopHow(StrEnum):
    """How `run stop` ends a run."""

    NOW = "now"
    DRAIN = "drain"


def _typer(text: str) -> typer.Typer:
    # typer's own rendering of help and tracebacks imports rich, which would triple the time that --help takes.
    return typer.Typer(help=text, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


app = _typer("GRPO training of language models as four gRPC services.")
run_app = _typer("Start, watch and steer runs of a coordinator, wherever it is.")
config_app = _typer("Look at a configuration file.")
app.add_typer(run_app, name="run")
app.add_typer(config_app, name="config")
reward_app = _typer("See what completions would be paid.")
app.add_typer(reward_app, name="reward")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file, for example configs/quickstart.toml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Set one field, for example --set run.num_steps=5. Repeatable."),
]
RunName = Annotated[
    str, typer.Argument(metavar="[RUN]", help="The run; by default the active one.", show_default=False)
]
Coordinator = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", envvar="SHOAL_COORDINATOR", help="The coordinator.", show_default=False),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to write the result.")]
NewName = Annotated[str, typer.Option("--name", help="Name of the new run; by default made of run.name and the time.")]


@app.command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="A TOML file; left out with --resume.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this run from its last checkpoint.")] = "",
    name: NewName = "",
    data_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", envvar="SHOAL_DATA_DIR", help="Where run folders are.")
    ] = Path("runs"),
) -> None:
    """Train on this machine: starts all four services, shows progress, ends them all.

    Ctrl-C writes a checkpoint and stops; a second one ends everything at once.
    """
    from services.coordinator.cli.train import train_here

    raise typer.Exit(train_here(config, overrides or [], resume=resume, name=name, data_dir=data_dir))


@run_app.command("start")
def run_start(
    coordinator: Coordinator = "",
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="A TOML file; left out with --resume.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this run from its last checkpoint.")] = "",
    name: NewName = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show progress until the run ends.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start or resume a run on the coordinator's workers."""
    from services.coordinator.cli import control

    request = control.start_request(config, overrides or [], resume=resume, name=name)
    raise typer.Exit(control.start(_address(coordinator), request, watch=watch, output=output))


@run_app.command("status")
def run_status(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Describe a run: state, step, groups, metrics of the last step."""
    from services.coordinator.cli import control

    control.status(_address(coordinator), run, output=output)


@run_app.command("watch")
def run_watch(
    run: RunName = "",
    coordinator: Coordinator = "",
    after: Annotated[int, typer.Option(min=0, help="Show only the events after this one.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a run's events as they happen, until it ends."""
    from services.coordinator.cli import control

    raise typer.Exit(control.watch(_address(coordinator), run, after_sequence=after, output=output))


@run_app.command("pause")
def run_pause(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Hold a run: no prompt is issued, sampling stops where it is, no step is begun."""
    from services.coordinator.cli import control

    control.steer(_address(coordinator), "PauseRun", run, output=output)


@run_app.command("resume")
def run_resume(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Let a paused run go on. (`run start --resume` goes on with one that has ended.)"""
    from services.coordinator.cli import control

    control.steer(_address(coordinator), "ResumeRun", run, output=output)


@run_app.command("stop")
def run_stop(
    run: RunName = "",
    coordinator: Coordinator = "",
    how: Annotated[
        StopHow, typer.Option("--mode", help="now: at the next step boundary; drain: train on what is in flight first.")
    ] = StopHow.NOW,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a run, with a checkpoint."""
    from services.coordinator.cli import control

    control.stop(_address(coordinator), run, drain=how is StopHow.DRAIN, output=output)


@run_app.command("checkpoint")
def run_checkpoint(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Write a checkpoint at the next step boundary, and wait for it."""
    from services.coordinator.cli import control

    control.checkpoint(_address(coordinator), run, output=output)


@run_app.command("evaluate")
def run_evaluate(run: RunName = "", coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """Evaluate the policy on the held-out questions at the next step boundary, and wait for the result."""
    from services.coordinator.cli import control

    control.evaluate(_address(coordinator), run, output=output)


@run_app.command("list")
def run_list(
    coordinator: Coordinator = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Most runs to list.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the runs of a coordinator, newest first."""
    from services.coordinator.cli import control

    control.list_runs(_address(coordinator), limit, output=output)


@run_app.command("rollouts")
def run_rollouts(
    run: RunName = "",
    coordinator: Coordinator = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most groups to list.")] = 5,
    page: Annotated[str, typer.Option(help="Go on where the listing before ended: the token that it printed.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List a run's groups in the order issued: prompts, completions, rewards, versions."""
    from services.coordinator.cli import control

    control.rollouts(_address(coordinator), run, limit, page, output=output)


@app.command()
def workers(coordinator: Coordinator = "", output: OutputOption = Output.TABLE) -> None:
    """List the workers that a coordinator knows."""
    from services.coordinator.cli import control

    control.workers(_address(coordinator), output=output)


@config_app.command("show")
def config_show(config: ConfigFile, overrides: Overrides = None, output: OutputOption = Output.TABLE) -> None:
    """Print the resolved configuration, defaults included. Each line of the table can be given to --set."""
    from services.coordinator.cli import configuration

    configuration.show(config, overrides or [], output=output)


@config_app.command("check")
def config_check(
    config: ConfigFile,
    overrides: Overrides = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Load tokenizer and data too, and look for the model's weights.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a configuration, and say what it amounts to."""
    from services.coordinator.cli import configuration

    configuration.check(config, overrides or [], deep=deep, output=output)


@config_app.command("translate")
def config_translate(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | -- SETTINGS",
            help="A launch script, YAML, JSON, a Python file or a notebook; or flags or overrides behind --, which "
            "also go on top of a file.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str, typer.Option("--from", metavar="SYSTEM", help="open-instruct, roll, unsloth, trl or verl.")
    ] = "",
    overrides: Overrides = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="NAME", help="Leave out what is refused under this name; `all`: whatever is."),
    ] = None,
) -> None:
    """Print another trainer's configuration as TOML; notes and refusals go to standard error.

    Every field is mapped, or named with the reason why not. Nothing is printed, and the exit code is 2, when what is
    refused would change the training.
    """
    from services.coordinator.cli import configuration

    configuration.translate(system, source or [], overrides or [], skip or [])


@config_app.command("suggest")
def config_suggest(
    task: Annotated[str, typer.Option(help="math_reasoning, instruction_following or code.", show_default=False)],
    gpu_memory_gb: Annotated[float, typer.Option(help="Memory of one GPU, in GB.", show_default=False)],
    model: Annotated[str, typer.Option(help="A Hugging Face model, as model.path.", show_default=False)],
    measured: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Expect what the machine of this run's folder did, not published figures."),
    ] = None,
) -> None:
    """Print a whole configuration to start from, a reason beside each choice, with expected memory and step time."""
    from shoal.config.suggest import H100, rates_of_run, suggest

    rates = H100 if measured is None else rates_of_run(measured)
    print(suggest(task, gpu_memory_gb, model, rates).toml, end="")


@reward_app.command("score")
def reward_score(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.jsonl",
            help="Rows with completion, ground_truth and verifier (or dataset); finish_reason, token_ids and weight "
            "where they matter.",
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Take [reward] from this file.")
    ] = None,
    overrides: Overrides = None,
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="Make token_ids with the tokenizer of CONFIG where a row has none.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Score completions as a run would: outcome, reward, its parts, what each verifier said. No service is needed."""
    from services.coordinator.cli import rewards

    rewards.score(file, config, overrides or [], tokenize=tokenize, output=output)


@reward_app.command("list")
def reward_list(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Describe the verifiers of this file as well.")
    ] = None,
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe every verifier: what it reads, what it returns, and whether it can work here."""
    from services.coordinator.cli import rewards

    rewards.list_verifiers(config, overrides or [], output=output)


@app.command()
def doctor(
    data_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", envvar="SHOAL_DATA_DIR", help="Where run folders are.")
    ] = Path("runs"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what is installed, what will run where, what is missing and how to get it."""
    from services.coordinator.cli.doctor import doctor as examine

    raise typer.Exit(examine(data_dir, output=output))


def _address(coordinator: str) -> str:
    host, colon, port = coordinator.rpartition(":")
    if not coordinator:
        raise InvalidArgument(
            "which coordinator? give --coordinator HOST:PORT or set SHOAL_COORDINATOR; `shoal train` prints the "
            "address of its own"
        )
    if not (colon and host and port.isdecimal() and int(port) <= 65535):
        raise InvalidArgument(f"--coordinator {coordinator!r} is not host:port, such as 10.0.0.1:50050")
    return coordinator


def _check_unicode(argument: str) -> None:
    # Bytes that are no text come in as lone surrogates, which no message of the contract can carry.
    if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
        raise InvalidArgument(f"the argument {argument!r} is not UTF-8; write it in UTF-8")


def main() -> None:
    """Runs the command line and ends the process; errors of the domain become one message and an exit code."""
    try:
        for argument in sys.argv[1:]:
            _check_unicode(argument)
        app(prog_name="shoal")
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)
