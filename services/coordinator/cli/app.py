"""The `shoal` command, with one module for each noun. An error becomes one message and an exit code."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.coordinator.cli import certs, config, doctor, env, report, reward, run, train, workers
from services.coordinator.cli.export.command import export
from services.coordinator.cli.shared.exit_codes import ExitCode, exit_code_of
from services.coordinator.cli.shared.options import command_group
from shoal.errors import InvalidArgument, ShoalError

app = command_group("GRPO training of language models as four gRPC services.")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from shoal import __version__

        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def credentials(
    tls_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with tls.crt, tls.key and ca.crt, for a coordinator with TLS; or with ca.crt alone if "
            "SHOAL_TOKEN_FILE names a token. [env var: SHOAL_TLS_DIR]",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Sets the options that precede a command's name and apply to every command that calls a coordinator."""
    if tls_dir is not None:
        # services/coordinator/client.py reads this variable when a command connects.
        os.environ["SHOAL_TLS_DIR"] = str(tls_dir)


app.command("train")(train.train)
app.add_typer(run.app, name="run")
app.command("workers")(workers.workers)
app.command("report")(report.report)
app.command("export")(export)
app.add_typer(config.app, name="config")
app.add_typer(reward.app, name="reward")
app.add_typer(env.app, name="env")
app.command("certs")(certs.certs)
app.command("token")(certs.token)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Runs the command line and ends the process. Prints a `ShoalError` as one message and exits with its code."""
    try:
        for argument in sys.argv[1:]:
            _check_unicode(argument)
        app(prog_name="shoal")
    except ShoalError as error:
        message, hints = _with_hints(error)
        print(f"error: {message}", file=sys.stderr)
        for hint in hints:
            print(f"note: {hint}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output, such as `head`, closed it. Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)


def _with_hints(error: ShoalError) -> tuple[str, list[str]]:
    """Returns the error's message, with hints about fields of other systems.

    For an unknown name that another system uses, the message proposes Shoal's counterpart rather than a field with a
    similar spelling.
    """
    message, hints = error.message, list[str]()
    if not isinstance(error, InvalidArgument) or not error.violations:
        return message, hints
    from shoal.config import RunConfig
    from shoal.config.fields import all_fields
    from shoal.config.load import UNKNOWN_KEY
    from shoal.translate import SYSTEMS
    from shoal.translate.hints import field_hint, meant_fields

    fields = all_fields(RunConfig)
    for violation in error.violations:
        field, description = violation.field, violation.description
        if not description.startswith(UNKNOWN_KEY):
            continue
        if meant := meant_fields(field, SYSTEMS.values()):
            same = [one for one in fields if one.rpartition(".")[2] == field.rpartition(".")[2]]
            proposed = " or ".join(dict.fromkeys([*meant, *same]))
            message = message.replace(f"{field}: {description}", f"{field}: {UNKNOWN_KEY}; did you mean {proposed}?")
        if hint := field_hint(field, SYSTEMS.values()):
            hints.append(hint)
    return message, hints


def _check_unicode(argument: str) -> None:
    # Python decodes invalid bytes as lone surrogates, which protobuf cannot carry.
    if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
        raise InvalidArgument(f"the argument {argument!r} is not UTF-8; write it in UTF-8")
