"""`shoal export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.coordinator.cli.shared.options import DataDir
from shoal.errors import InvalidArgument


def export(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="The run; the default is the active one, or the newest.")
    ] = "",
    step: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="The step whose model is taken; the default is the newest there is."),
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter/--merged", help="After training with adapters: the adapter alone, or the model merged with it."
        ),
    ] = False,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FOLDER|URL", help="Write it to a folder, s3://..., gs://..., or another URL."),
    ] = "",
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Push it to this repository of the Hugging Face hub, tag step-N.")
    ] = "",
    public: Annotated[
        bool, typer.Option("--public", help="Make that repository public; without it, it is private.")
    ] = False,
    data_dir: DataDir = Path("runs"),
    learner_data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The learner's folder of all runs, where it has one of its own."),
    ] = None,
) -> None:
    """Copy the model of a step elsewhere. Takes it from an export or a checkpoint of that step.

    The run may go on meanwhile. A checkpoint needs the learner's packages; an export needs none.
    """
    from services.coordinator.cli.export import hub
    from services.coordinator.cli.export.card import card_title, model_card
    from services.coordinator.cli.export.files import CARD, check_destination, deliver, write_sums
    from services.coordinator.cli.export.model import find_model, staged
    from services.coordinator.store.run_folders import RunFolders

    _check_options(to, push, public=public)
    record = RunFolders(data_dir).find(run)
    learner_folder = (learner_data_dir or data_dir).absolute() / record.run_id
    model = find_model(record, learner_folder, step)
    if to:
        check_destination(to, card_title(record, model.step), is_adapter=adapter)
    if push:
        hub.check_repository(push, model.step, public=public)
    report(f"the model of step {model.step} of run {record.run_id}, from {model.folder}")
    with staged(model, record, learner_folder, adapter=adapter) as files:
        write_sums(files)
        card = model_card(record, record.load_config(), model.step, push, is_adapter=adapter)
        (files / CARD).write_text(card, encoding="utf-8")
        if to:
            deliver(files, to, report)
        if push:
            hub.push(files, push, model.step, run_id=record.run_id, public=public, report=report)


def _check_options(to: str, push: str, *, public: bool) -> None:
    """Checks where the model goes, as far as that needs no run."""
    from services.coordinator.cli.export import hub
    from services.coordinator.remote.file_systems import file_system

    if not (to or push):
        raise InvalidArgument("nothing says where the model goes: use --to FOLDER, --to URL or --push OWNER/NAME")
    if push:
        hub.check_push(push)
    elif public:
        raise InvalidArgument("--public is for a repository: name it with --push OWNER/NAME")
    if to:
        file_system(to, "--to")


def report(line: str) -> None:
    """Prints what has been done."""
    print(line, file=sys.stdout, flush=True)
