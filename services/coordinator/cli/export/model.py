"""The model of a run's step, as separate files: links to an export, or files written from a checkpoint."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from services.coordinator.cli.export.card import is_hub_name
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.checks.extras import LEARNER, check_extras
from services.coordinator.store.events import EVENTS, read_events
from services.coordinator.store.run_record import RunRecord
from shoal.config import dump_config
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, NotFound
from shoal.paths import step_name
from shoal.wire.json_form import json_form

_ADAPTER = "adapter"
"""The folder of the adapter within the merged model's folder."""
_ORIGINS = {
    "config.json": ("_name_or_path",),
    "tokenizer_config.json": ("name_or_path",),
    f"{_ADAPTER}/adapter_config.json": ("base_model_name_or_path", "revision"),
}
"""Files that name the base model, and the keys under which they name it."""
_STAGING = ".export-"


@dataclass(frozen=True)
class StepModel:
    """A source of the model of a step."""

    step: int
    folder: Path
    """A model folder, or the learner's part of a checkpoint."""
    checkpoint_id: str = ""
    """The checkpoint; empty for a model folder."""


def find_model(record: RunRecord, learner_folder: Path, step: int | None) -> StepModel:
    """Finds the model of a step, or the newest model: an export, the trained model, or a checkpoint.

    `learner_folder` is the run's folder on the learner's storage. Raises `NotFound`, which names the available steps.
    """
    found = {model.step: model for model in _models(record, learner_folder)}
    if not found:
        raise NotFound(
            f"run {record.run_id} has no export and no checkpoint in {learner_folder}; if the learner has a separate "
            "folder, name that folder with --learner-data-dir",
            reason=ErrorReason.NO_SUCH_CHECKPOINT,
        )
    wanted = max(found) if step is None else step
    if wanted not in found:
        raise NotFound(
            f"run {record.run_id} has neither an export nor a checkpoint of step {wanted}; choose one of the steps "
            f"{', '.join(map(str, sorted(found)))}",
            reason=ErrorReason.NO_SUCH_CHECKPOINT,
        )
    return found[wanted]


def _models(record: RunRecord, learner_folder: Path) -> Iterator[StepModel]:
    """Yields the models of a run. Of the models of one step, the cheapest comes last."""
    for checkpoint_id in Checkpoints(record.folder).committed():
        folder = learner_folder / "checkpoints" / checkpoint_id / "learner"
        if folder.is_dir():
            yield StepModel(int(checkpoint_id.removeprefix("step-")), folder, checkpoint_id)
    trained_step = _trained_step(record)
    if trained_step is not None and (learner_folder / "model").is_dir():
        yield StepModel(trained_step, learner_folder / "model")
    for step in record.exported_steps:
        folder = learner_folder / "exports" / step_name(step)
        if folder.is_dir():
            yield StepModel(step, folder)


def _trained_step(record: RunRecord) -> int | None:
    """Returns the step of the trained model; None before the model is written, and after the run is resumed."""
    step = None
    for event in read_events(record.folder / EVENTS):
        if event.kind == "exported":
            step = int(event.attributes.fields["policy_version"].number_value)
        elif event.kind == "restored":
            step = None
    return step


@contextmanager
def staged(model: StepModel, record: RunRecord, learner_folder: Path, *, adapter: bool = False) -> Iterator[Path]:
    """Yields a temporary folder with the files of a model, or of its adapter, which the run cannot delete meanwhile.

    Raises `NotFound` if there is no adapter, and `FailedPrecondition` if `learner_folder` cannot be written. Prints the
    reason and exits if the learner's code cannot read a checkpoint.
    """
    is_there = (model.folder / _ADAPTER).is_dir() or (model.checkpoint_id and record.load_config().learner.lora.is_on)
    if adapter and not is_there:
        raise NotFound(
            f"{model.folder} has no adapter, since the run did not train with learner.lora: leave out --adapter",
            reason=ErrorReason.NO_SUCH_CHECKPOINT,
        )
    _delete_abandoned(learner_folder)
    try:
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=learner_folder))
    except OSError as error:
        raise FailedPrecondition(
            f"no temporary folder can be made in {learner_folder}: {error.strerror}; the folder must be writable",
            reason=ErrorReason.FOLDER,
        ) from None
    lock = _lock(staging)
    try:
        if model.checkpoint_id:
            _write_from_checkpoint(model, record, staging, adapter=adapter)
        else:
            _link_files(model.folder, staging)
        _hide_folders(staging)
        yield staging / _ADAPTER if adapter else staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(staging: Path) -> int | None:
    """Locks a temporary folder for the life of this process. Returns the open lock; None if another process has it."""
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _delete_abandoned(learner_folder: Path) -> None:
    """Deletes the temporary folders of killed commands, whose links keep the files of deleted exports."""
    for staging in learner_folder.glob(f"{_STAGING}*"):
        with suppress(OSError):
            if (lock := _lock(staging)) is not None:
                shutil.rmtree(staging, ignore_errors=True)
                os.close(lock)


def _link_files(folder: Path, staging: Path) -> None:
    try:
        before = folder.stat().st_ino
        shutil.copytree(folder, staging, copy_function=_link, dirs_exist_ok=True)
        if folder.stat().st_ino != before:  # A restored run has taken the step again.
            raise FileNotFoundError(folder)
    except (FileNotFoundError, shutil.Error):
        raise NotFound(
            f"{folder} changed while it was read: the run may have deleted or replaced the folder "
            "(checkpoint.export_keep_last); repeat the command",
            reason=ErrorReason.NO_SUCH_CHECKPOINT,
        ) from None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # The file system has no hard links.
        shutil.copyfile(source, target)


def _hide_folders(staging: Path) -> None:
    """Removes the name of a base model that is not on the hub from files, since other machines lack its folder."""
    for name, keys in _ORIGINS.items():
        file = staging / name
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not (origin := values.get(keys[0])) or is_hub_name(origin):
            continue
        file.unlink()  # It is a link to the run's own file.
        values |= dict.fromkeys(keys)
        file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_from_checkpoint(model: StepModel, record: RunRecord, staging: Path, *, adapter: bool) -> None:
    check_extras([LEARNER])
    manifest = Checkpoints(record.folder).load_manifest(model.checkpoint_id)
    request = {
        "config": dump_config(record.load_config()),
        "checkpoint": str(model.folder),
        "files": [json_form(file) for file in manifest.learner_files],
        "folder": str(staging),
        "adapter": adapter,
    }
    print(f"writing the model of checkpoint {model.checkpoint_id}", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", "services.learner.storage.checkpoint_export"],
        input=json.dumps(request), stdout=sys.stderr, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else 1)
