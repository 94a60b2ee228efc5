"""Fetches from the mirror of a run what this data folder lacks: the run, a checkpoint or a segment."""

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct

from services.coordinator.remote.mirror_folder import Age, MirroredCheckpoint, MirroredFile, MirrorFolder, RunPlaces
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.run_record import holds_run
from shoal.config.load import plain_values
from shoal.config.tables.run import RUN_NAME
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound, ResourceExhausted, ShoalError, Unavailable
from shoal.parsing import parse_json
from shoal.quantities import format_bytes

_log = logging.getLogger(__name__)

_ANSWER_S = 20.0
"""Maximum wait in seconds for an answer of the mirror of a run that is already in the folder."""


def take_from_mirror(
    data_dir: Path, run_id: str, changes: Mapping[str, Any] | Struct, learner_data_dir: Path | None = None
) -> None:
    """Fetches a resumed run that `data_dir` lacks, with its newest whole checkpoint, if `changes` name its mirror.

    `changes` name the mirror as `checkpoint.mirror`. The learner's files go to `learner_data_dir`, by default
    `data_dir`. A run that `data_dir` has is not changed. Raises `NotFound` if the mirror does not have the run,
    `DataLoss` if no checkpoint is whole, `ResourceExhausted` if the disk is too small, `Unavailable` if the mirror
    cannot be read, and `FailedPrecondition` if `data_dir` has the run but the mirror has a later checkpoint.
    """
    if not RUN_NAME.fullmatch(run_id):
        return
    folder, given = data_dir / run_id, _mirror_in(plain_values(changes))
    if not holds_run(folder):
        if given:
            fetch_run(given, run_id, data_dir, learner_data_dir or data_dir)
        return
    with suppress(OSError, ValueError, KeyError, TypeError):  # The recovery finds the damage.
        url = _mirror_in(parse_json((folder / "config.json").read_text(encoding="utf-8"))) if given is None else given
        if url:
            _check_not_behind(url, folder)


def _mirror_in(values: Mapping[str, Any]) -> str | None:
    section = values.get("checkpoint")
    url = section.get("mirror") if isinstance(section, Mapping) else None
    return url if isinstance(url, str) else None


def _check_not_behind(url: str, folder: Path) -> None:
    """Raises `FailedPrecondition` if the mirror has a later checkpoint. A mirror that does not answer is ignored."""
    found: list[MirroredCheckpoint] = []
    # A daemon: a mirror that hangs must not stop the run.
    looking = threading.Thread(target=lambda: found.extend(_whole(url, folder.name)), daemon=True)
    looking.start()
    looking.join(_ANSWER_S)
    manifests = [parse_json(path.read_text(encoding="utf-8")) for path in folder.glob("checkpoints/*/manifest.json")]
    if not manifests and parse_json((folder / "run.json").read_text(encoding="utf-8")).get("last_checkpoint_id"):
        return  # The checkpoints are gone: the recovery takes the mirror's.
    here = max(((each["attempt"], each["policy_version"]) for each in manifests), default=(-1, 0))
    if found and (found[-1].attempt, found[-1].policy_version) > here:
        raise FailedPrecondition(
            f"{folder} ends with {f'step {here[1]}' if manifests else 'no checkpoint'}, but the mirror {url} has the "
            f"later checkpoint {found[-1].checkpoint_id}: to continue from the mirror, rename the folder; to continue "
            'from the folder, set checkpoint.mirror to another place, or to ""',
            reason=ErrorReason.MIRROR_IS_AHEAD,
        )


def _whole(url: str, run_id: str) -> list[MirroredCheckpoint]:
    try:
        return MirrorFolder(url, run_id).whole()
    except Exception as error:
        _log.warning("the mirror %s could not be read: %s", url, error)
        return []


def fetch_run(url: str, run_id: str, data_dir: Path, learner_data_dir: Path) -> None:
    """Fetches the newest whole checkpoint of a run. Raises the errors of `take_from_mirror`."""
    mirror = MirrorFolder(url, run_id)
    places = RunPlaces(data_dir / run_id, learner_data_dir / run_id)
    try:
        _, damaged = _fetch_newest(mirror, url, places, lambda checkpoint: checkpoint, _move_run)
    except ShoalError:
        raise
    except Exception as error:  # Each file system has its own errors.
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise Unavailable(f"checkpoint.mirror: no run could be fetched from {url}: {kind}{error}") from error
    events = EventLog(data_dir / run_id / EVENTS)
    events.add("fetched", f"the run was fetched from {url}{''.join(damaged)}", url=url, damaged=damaged)
    events.close()


def fetch_checkpoint(url: str, places: RunPlaces, newer_than: Age | None = None) -> tuple[str, list[str]]:
    """Fetches the newest whole checkpoint into a run's folders. Returns its name, and the faults of newer checkpoints.

    With `newer_than`, fetches only a newer checkpoint; an empty name means that no checkpoint is newer. The record of
    the run is not changed, nor are the segments, which training does not need. Raises the errors of the file system
    and of `take_from_mirror`.
    """

    def own_files(checkpoint: MirroredCheckpoint) -> MirroredCheckpoint:
        files = (file for file in checkpoint.files if file.path.startswith("checkpoints/"))
        return replace(checkpoint, files=tuple(files))

    mirror = MirrorFolder(url, places.run_folder.name)
    return _fetch_newest(mirror, url, places, own_files, _move_checkpoint, newer_than)


def fetch_shared(url: str, run_folder: Path, file: MirroredFile) -> None:
    """Replaces a file that checkpoints share with the mirror's copy. Raises the errors of `fetch_checkpoint`."""
    target = run_folder / file.path
    partial = target.with_name(f".{target.name}.fetched")
    try:
        MirrorFolder(url, run_folder.name).get_shared(file, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fetch_newest(
    mirror: MirrorFolder,
    url: str,
    places: RunPlaces,
    wanted: Callable[[MirroredCheckpoint], MirroredCheckpoint],
    move: Callable[[RunPlaces, RunPlaces, str], None],
    newer_than: Age | None = None,
) -> tuple[str, list[str]]:
    """Fetches the `wanted` files of the newest whole checkpoint, and moves them from its partial folders.

    The results are those of `fetch_checkpoint`.
    """
    run_id, damaged = places.run_folder.name, list[str]()
    whole = [each for each in mirror.whole() if newer_than is None or each.age > newer_than]
    if newer_than is None and not whole:
        raise NotFound(
            f"checkpoint.mirror: {url} has no checkpoint of run {run_id!r}: check the address and the run's name",
            reason=ErrorReason.NO_RUN,
        )
    partial = RunPlaces(_partial_of(places.run_folder), _partial_of(places.learner_folder))
    try:
        for checkpoint in map(wanted, reversed(whole)):
            for folder in {partial.run_folder, partial.learner_folder}:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            _check_room(places.learner_folder.parent, checkpoint)
            _log.info("fetching %s, %s, from %s", checkpoint.checkpoint_id, format_bytes(checkpoint.num_bytes), url)
            try:
                mirror.get(checkpoint, partial)
            except DataLoss as error:
                damaged.append(f"; checkpoint {checkpoint.checkpoint_id} there is damaged: {error.message}")
                _log.warning("checkpoint %s of the mirror is damaged: %s", checkpoint.checkpoint_id, error.message)
                continue
            move(partial, places, checkpoint.checkpoint_id)
            return checkpoint.checkpoint_id, damaged
    finally:
        for folder in (partial.run_folder, partial.learner_folder):
            shutil.rmtree(folder, ignore_errors=True)
    if newer_than is not None:
        return "", damaged
    raise DataLoss(
        f"checkpoint.mirror: no checkpoint of run {run_id} in {url} is whole{''.join(damaged)}",
        reason=ErrorReason.CHECKPOINT_DAMAGED,
    )


def _partial_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.fetched")


def _move_run(partial: RunPlaces, places: RunPlaces, checkpoint_id: str) -> None:
    """Moves a run into place. The run's folder is moved last: until then the run does not exist."""
    if places.learner_folder != places.run_folder:
        learners = Path("checkpoints", checkpoint_id, "learner")
        # Storage that outlived the coordinator's may have this folder.
        _replace_folder(partial.learner_folder / learners, places.learner_folder / learners)
    partial.run_folder.rename(places.run_folder)


def _move_checkpoint(partial: RunPlaces, places: RunPlaces, checkpoint_id: str) -> None:
    """Moves a checkpoint into the folder of its run, where it replaces a damaged checkpoint."""
    own = Path("checkpoints", checkpoint_id)
    if places.learner_folder != places.run_folder:
        _replace_folder(partial.learner_folder / own / "learner", places.learner_folder / own / "learner")
    _replace_folder(partial.run_folder / own, places.run_folder / own)


def _replace_folder(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _check_room(data_dir: Path, checkpoint: MirroredCheckpoint) -> None:
    free = shutil.disk_usage(data_dir).free
    if free < checkpoint.num_bytes:
        raise ResourceExhausted(
            f"--data-dir: the disk of {data_dir} has {format_bytes(free)} free, but checkpoint "
            f"{checkpoint.checkpoint_id} of the mirror needs {format_bytes(checkpoint.num_bytes)}: free some space, or "
            "choose another --data-dir",
            reason=ErrorReason.DISK_FULL,
        )
