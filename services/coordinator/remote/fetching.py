"""A run that this data folder does not have, taken from its mirror."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct

from services.coordinator.remote.mirror_folder import MirroredCheckpoint, MirrorFolder
from services.coordinator.store.events import EVENTS, EventLog
from shoal.config.load import plain_values
from shoal.config.run import RUN_NAME
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, NotFound, ResourceExhausted, ShoalError, Unavailable
from shoal.quantities import format_bytes

_log = logging.getLogger(__name__)


def fetch_if_absent(data_dir: Path, run_id: str, changes: Mapping[str, Any] | Struct) -> None:
    """Fetches the newest whole checkpoint of a run that is not in the folder, if `changes` name its mirror.

    That is `checkpoint.mirror`, which the resumed run then has. Raises `NotFound` where the mirror does not have the
    run, `DataLoss` where no checkpoint is whole, `ResourceExhausted` where the disk is too small, and `Unavailable`
    when the mirror cannot be read.
    """
    if (data_dir / run_id / "run.json").exists() or not RUN_NAME.fullmatch(run_id):
        return
    section = plain_values(changes).get("checkpoint")
    url = section.get("mirror") if isinstance(section, Mapping) else None
    if isinstance(url, str) and url:
        fetch_run(url, run_id, data_dir)


def fetch_run(url: str, run_id: str, data_dir: Path) -> None:
    """Fetches the newest whole checkpoint of a run. Raises as `fetch_if_absent`."""
    mirror = MirrorFolder(url, run_id, "checkpoint.mirror")
    try:
        damaged = _fetch_newest(mirror, url, run_id, data_dir)
    except (ShoalError, OSError) as error:
        if isinstance(error, OSError):
            raise Unavailable(f"checkpoint.mirror: {url} could not be read: {error}") from error
        raise
    except Exception as error:  # Each file system has errors of its own.
        raise Unavailable(f"checkpoint.mirror: {url} could not be read: {type(error).__name__}: {error}") from error
    events = EventLog(data_dir / run_id / EVENTS)
    events.add("fetched", f"the run is taken from {url}{''.join(damaged)}", url=url, damaged=damaged)
    events.close()


def _fetch_newest(mirror: MirrorFolder, url: str, run_id: str, data_dir: Path) -> list[str]:
    """Fetches the newest checkpoint that is whole; returns what is wrong with newer ones."""
    whole = mirror.whole()
    if not whole:
        raise NotFound(
            f"checkpoint.mirror: {url} has no checkpoint of run {run_id!r}: check both names",
            reason=ErrorReason.NO_RUN,
        )
    partial, damaged = data_dir / f".{run_id}.fetched", []
    try:
        for checkpoint in reversed(whole):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _check_room(data_dir, checkpoint)
            _log.info("fetching %s, %s, from %s", checkpoint.checkpoint_id, format_bytes(checkpoint.num_bytes), url)
            try:
                mirror.get(checkpoint, partial, lambda _: None)
            except DataLoss as error:
                damaged.append(f"; checkpoint {checkpoint.checkpoint_id} there is damaged: {error.message}")
                _log.warning("checkpoint %s of the mirror is damaged: %s", checkpoint.checkpoint_id, error.message)
                continue
            partial.rename(data_dir / run_id)
            return damaged
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    raise DataLoss(
        f"checkpoint.mirror: no checkpoint of run {run_id} in {url} is whole{''.join(damaged)}",
        reason=ErrorReason.CHECKPOINT_DAMAGED,
    )


def _check_room(data_dir: Path, checkpoint: MirroredCheckpoint) -> None:
    free = shutil.disk_usage(data_dir).free
    if free < checkpoint.num_bytes:
        raise ResourceExhausted(
            f"--data-dir: the disk of {data_dir} has {format_bytes(free)} free, and checkpoint "
            f"{checkpoint.checkpoint_id} of the mirror has {format_bytes(checkpoint.num_bytes)}: make room, or choose "
            "another --data-dir",
            reason=ErrorReason.DISK_FULL,
        )
