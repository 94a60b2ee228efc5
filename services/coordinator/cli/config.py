"""`shoal config ...`: show, check, translate, and suggest configurations."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.coordinator.cli.shared.options import ConfigFile, OutputOption, Overrides, command_group
from services.coordinator.cli.shared.output import Output, print_json, print_pairs
from shoal.errors import InvalidArgument

if TYPE_CHECKING:
    from shoal.translate.shared.draft import Refusal

app = command_group("Show, check, translate, and suggest configurations.")

_AsOf = Annotated[
    str,
    typer.Option(
        "--as-of", metavar="YYYY-MM", help="Assume the system's defaults of that month. Only for open-instruct and trl."
    ),
]
_Skip = Annotated[
    list[str] | None,
    typer.Option(
        "--skip",
        metavar="NAME",
        help="Leave out the refused field of this name; `all` leaves out every refused field that a configuration "
        "does not need.",
    ),
]
_FieldsOf = Annotated[
    str, typer.Option("--fields", metavar="SYSTEM", help="Print how each field of that system is translated, and exit.")
]


@app.command()
def show(config: ConfigFile, overrides: Overrides = None, output: OutputOption = Output.TABLE) -> None:
    """Print the resolved configuration, including the defaults. Each printed line can be given to --set."""
    from services.coordinator.cli.config_check import counted
    from shoal.config import dump_config, load_config
    from shoal.config.derived import derived_values

    loaded = counted(load_config(config, overrides or []))
    values, derived = dump_config(loaded), derived_values(loaded)
    if output is Output.JSON:
        print_json({**values, "derived": derived})
        return
    for name, value in _flatten(values):
        print(f"{name}={json.dumps(value, ensure_ascii=False)}")
    print("# derived from the fields above; these cannot be set:")
    for name, value in derived.items():
        print(f"# {name}={json.dumps(value)}")


@app.command()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Load tokenizer and data too, and look for the model's weights.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a configuration, and print the sizes that follow from it."""
    from services.coordinator.cli.config_check import check_config, check_inputs
    from shoal.config import load_config
    from shoal.config.notes import notes_on

    loaded = load_config(config, overrides or [])
    facts = {"config": str(config), **check_config(loaded)}
    if deep:
        loaded, inputs = check_inputs(loaded)
        facts |= inputs
    for note in notes_on(loaded):
        print(f"note: {note}", file=sys.stderr)
    if output is Output.JSON:
        print_json(facts)
    else:
        print_pairs([(name.replace("_", " "), str(value)) for name, value in facts.items()])
        print("the configuration is valid" + ("" if deep else "; --deep also loads tokenizer, data and labels"))


@app.command()
def translate(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | -- SETTINGS",
            help="A launch script, YAML, JSON, a Python file or a notebook; or flags or overrides after --, "
            "which take precedence over a file.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str, typer.Option("--from", metavar="SYSTEM", help="open-instruct, roll, unsloth, trl or verl.")
    ] = "",
    overrides: Overrides = None,
    as_of: _AsOf = "",
    checkout: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Read chat templates, prompts and defaults from a clone of the system."),
    ] = None,
    skip: _Skip = None,
    fields: _FieldsOf = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="Format of --fields.")] = Output.TABLE,
) -> None:
    """Print another trainer's configuration as TOML. Notes and refusals go to standard error.

    Every field is either translated, or named with the reason why it is not. If a refused field would change the
    training, the command prints no TOML and exits with code 2.
    """
    from services.coordinator.cli.translated_fields import print_fields
    from shoal.translate import SYSTEMS, translate_arguments

    option, name = ("--fields", fields) if fields else ("--from", system)
    if name not in SYSTEMS:
        problem = f"{option} {name!r} is not a known system" if name else "--from is required"
        raise InvalidArgument(f"{problem}; choose one of {', '.join(SYSTEMS)}")
    if fields:
        if system or source:
            raise InvalidArgument(
                "--fields prints a table of all fields: leave out --from and the settings to translate"
            )
        print_fields(SYSTEMS[fields], output)
        return
    if not source:
        raise InvalidArgument("name a file to translate (.sh, .yaml, .json, .py, .ipynb), or give settings after --")
    translation = translate_arguments(
        system, source, skip=skip or [], overrides=overrides or [], as_of=as_of, checkout=checkout
    )
    for note in translation.notes:
        print(f"note: {note}", file=sys.stderr)
    for refusal in translation.refusals:
        left_out = not refusal.blocks or translation.leaves_out(refusal)
        print(f"{'left out' if left_out else 'refused'}: {refusal}", file=sys.stderr)
    if translation.blocking:
        raise InvalidArgument(_why_not(translation.blocking))
    print(translation.toml, end="")


@app.command()
def suggest(
    task: Annotated[str, typer.Option(help="math_reasoning, instruction_following or code.", show_default=False)],
    gpu_memory_gb: Annotated[float, typer.Option(help="Memory of one GPU, in GB.", show_default=False)],
    model: Annotated[str, typer.Option(help="A Hugging Face model, as model.path.", show_default=False)],
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Estimate times from the rates of the run in this folder instead of published rates."
        ),
    ] = None,
) -> None:
    """Print a configuration to start from.

    Its comments give reasons, the expected memory, and the expected time of a step.
    """
    from shoal.suggest import H100, rates_of_run, suggest

    rates = H100 if measured is None else rates_of_run(measured)
    print(suggest(task, gpu_memory_gb, model, rates).toml, end="")


def _why_not(blocking: "Sequence[Refusal]") -> str:
    """Returns the reason why nothing is translated, with the remedy."""
    needed, others = (
        ", ".join(dict.fromkeys(refusal.name for refusal in blocking if refusal.is_needed == is_needed))
        for is_needed in (True, False)
    )
    parts = []
    if others:
        parts.append(
            f"the configuration is not translated because of {others}: change the source, set the fields with --set, "
            "or leave them out with --skip NAME (or --skip all)"
        )
    if needed:
        parts.append(f"no configuration is possible without {needed}: set it with --set; --skip cannot leave it out")
    return "; ".join(parts)


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names and their values. An element of a list has its index in the name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None or not value:
        yield prefix, value
        return
    for key, item in items:
        yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
