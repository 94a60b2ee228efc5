"""`shoal export`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the card, the files and where they would go, and write and push nothing."),
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
    obstacles: list[str] = []
    with _collecting(obstacles, dry_run=dry_run):
        if to:
            check_destination(to, card_title(record, model.step), is_adapter=adapter)
    with _collecting(obstacles, dry_run=dry_run):
        if push:
            hub.check_token()
            hub.check_repository(push, model.step, public=public)
    report(f"the model of step {model.step} of run {record.run_id}, from {model.folder}")
    with staged(model, record, learner_folder, adapter=adapter) as files:
        write_sums(files)
        card = model_card(record, record.load_config(), model.step, push, is_adapter=adapter)
        (files / CARD).write_text(card, encoding="utf-8")
        if dry_run:
            _show(
                files, card, [*([to] if to else []), *([hub.target(push, model.step, public=public)] if push else [])]
            )
            for obstacle in obstacles:
                report(f"This would stop it: {obstacle}")
            return
        if to:
            deliver(files, to, report)
        if push:
            hub.push(files, push, model.step, run_id=record.run_id, public=public, report=report)


@contextmanager
def _collecting(obstacles: list[str], *, dry_run: bool) -> Iterator[None]:
    """Keeps what would stop the command for the end of a dry run; otherwise it stops it here."""
    from shoal.errors import ShoalError

    try:
        yield
    except ShoalError as error:
        if not dry_run:
            raise
        obstacles.append(error.message)


def _show(folder: Path, card: str, targets: list[str]) -> None:
    """Prints the card, and the files with their sizes."""
    from services.coordinator.cli.export.files import list_names
    from shoal.quantities import format_bytes

    sizes = {name: (folder / name).stat().st_size for name in list_names(folder)}
    report(f"\n{card}")
    for name, size in sizes.items():
        report(f"{format_bytes(size):>10}  {name}")
    for target in targets:
        report(f"{len(sizes)} files, {format_bytes(sum(sizes.values()))}, would go to {target}")
    report("Nothing was written there or pushed.")


def _check_options(to: str, push: str, *, public: bool) -> None:
    """Checks where the model goes, as far as that needs no run."""
    from services.coordinator.cli.export import hub
    from services.coordinator.remote.file_systems import file_system

    if not (to or push):
        raise InvalidArgument("nothing says where the model goes: use --to FOLDER, --to URL or --push OWNER/NAME")
    if push:
        hub.check_name(push)
    elif public:
        raise InvalidArgument("--public is for a repository: name it with --push OWNER/NAME")
    if to:
        file_system(to, "--to")


def report(line: str) -> None:
    """Prints what has been done."""
    print(line, file=sys.stdout, flush=True)
