"""`shoal export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.coordinator.cli.shared.options import DataDir
from shoal.errors import InvalidArgument, ShoalError

if TYPE_CHECKING:
    from services.coordinator.store.run_record import RunRecord

_Run = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]", help="The run, or the path of its folder; the default is the active one, or the newest."
    ),
]


def export(
    run: _Run = "",
    step: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="The step whose model is copied; the default is the newest step."),
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option("--adapter/--merged", help="After adapter training: copy the adapter alone, or the merged model."),
    ] = False,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FOLDER|URL", help="Write to a folder, s3://..., gs://..., or another URL."),
    ] = "",
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Push to this repository of the Hugging Face hub, as tag step-N.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="Create a public repository, not a private one.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the card, files and destinations, and write and push nothing."),
    ] = False,
    data_dir: DataDir = Path("runs"),
    learner_data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The learner's folder of all runs, if it is a separate folder."),
    ] = None,
) -> None:
    """Copy the model of a step elsewhere.

    Takes the model from an export or a checkpoint of that step. The run may continue meanwhile. Reading a
    checkpoint needs the learner's packages; reading an export does not.
    """
    from services.coordinator.cli.export.card import model_card
    from services.coordinator.cli.export.files import CARD, write_sums
    from services.coordinator.cli.export.model import find_model, staged
    from services.coordinator.store.run_folders import RunFolders, locate_run
    from shoal.models.model_folder import read_json

    place = _Place(to, push, public)
    place.check_options()
    data_dir, run = locate_run(run, data_dir)
    record = RunFolders(data_dir).find(run)
    learner_folder = (learner_data_dir or data_dir).absolute() / record.run_id
    model = find_model(record, learner_folder, step)
    obstacles = place.obstacles(record, model.step, is_adapter=adapter)
    if obstacles and not dry_run:
        raise obstacles[0]
    print(f"the model of step {model.step} of run {record.run_id}, from {model.folder}", flush=True)
    with staged(model, record, learner_folder, adapter=adapter) as files:
        write_sums(files)
        configs = [read_json(folder / "config.json", optional=True) for folder in (files, model.folder)]
        reads_images = any("vision_config" in config for config in configs)
        card = model_card(record, record.load_config(), model.step, push, is_adapter=adapter, reads_images=reads_images)
        (files / CARD).write_text(card, encoding="utf-8")
        if dry_run:
            _show(files, card, place.names(model.step), obstacles)
        else:
            place.send(files, model.step, record.run_id)


@dataclass(frozen=True)
class _Place:
    """The destination of a model."""

    to: str
    push: str
    public: bool

    def check_options(self) -> None:
        """Checks the options as far as possible without a run."""
        from services.coordinator.cli.export import hub
        from services.coordinator.remote.file_systems import file_system

        if not (self.to or self.push):
            raise InvalidArgument("the model has no destination: use --to FOLDER, --to URL or --push OWNER/NAME")
        if self.push:
            hub.check_name(self.push)
        elif self.public:
            raise InvalidArgument("--public applies to a repository: name the repository with --push OWNER/NAME")
        if self.to:
            file_system(self.to, "--to")

    def obstacles(self, record: "RunRecord", step: int, *, is_adapter: bool) -> list[ShoalError]:
        """Returns the errors that would stop the delivery. Comes before the model is written, which takes minutes."""
        from services.coordinator.cli.export import hub
        from services.coordinator.cli.export.card import card_title
        from services.coordinator.cli.export.files import check_destination

        found = []
        try:
            if self.to:
                check_destination(self.to, card_title(record, step), is_adapter=is_adapter)
        except ShoalError as error:
            found.append(error)
        try:
            if self.push:
                hub.check_token()
                hub.check_repository(self.push, step, public=self.public)
        except ShoalError as error:
            found.append(error)
        return found

    def names(self, step: int) -> list[str]:
        """Returns the destinations in words."""
        from services.coordinator.cli.export import hub

        pushed = [hub.target(self.push, step, public=self.public)] if self.push else []
        return [*([self.to] if self.to else []), *pushed]

    def send(self, files: Path, step: int, run_id: str) -> None:
        """Writes and pushes the files."""
        from services.coordinator.cli.export import hub
        from services.coordinator.cli.export.files import deliver

        if self.to:
            deliver(files, self.to)
        if self.push:
            hub.push(files, self.push, step, run_id=run_id, public=self.public)


def _show(folder: Path, card: str, places: Sequence[str], obstacles: Sequence[ShoalError]) -> None:
    """Prints the card, the files with their sizes, the destinations, and what would stop the delivery."""
    from services.coordinator.cli.export.files import list_names
    from shoal.quantities import counted, format_bytes

    sizes = {name: (folder / name).stat().st_size for name in list_names(folder)}
    print(f"\n{card}", flush=True)
    for name, size in sizes.items():
        print(f"{format_bytes(size):>10}  {name}", flush=True)
    for place in places:
        print(f"{counted(len(sizes), 'file')}, {format_bytes(sum(sizes.values()))}, would go to {place}", flush=True)
    print("This is a dry run: nothing was written or pushed.", flush=True)
    for obstacle in obstacles:
        print(f"An error would stop the delivery: {obstacle.message}", flush=True)
