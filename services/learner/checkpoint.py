"""Checkpoints: what every rank writes of its shards, and how it is proved whole when it is read.

`<data_dir>/<run_id>/checkpoints/<checkpoint_id>/learner` holds DeepSpeed's files, `learner.json` and, where the
reference follows the policy, its weights in `reference/`. There is no state beyond them: the learning rate is a
function of the optimizer steps, and the policy has no dropout, so nothing random.
"""

import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.learner.export import write_weights
from services.learner.files import (
    discard_folder,
    finish_folder,
    list_files,
    partial_of,
    sha256_of,
    start_folder,
    storage_error,
    storage_errors,
)
from services.learner.learner import Learner
from services.learner.ranks import Ranks
from services.learner.reference import ReferenceModel
from shoal.errors import DataLoss, FailedPrecondition, NotFound, ShoalError
from shoal.rollout import WeightVersion

_FOLDER = "learner"
_SUMMARY = "learner.json"
_REFERENCE = "reference"


@dataclass(frozen=True)
class FileDigest:
    """A file of a checkpoint."""

    path: str
    """Below the checkpoint's `learner` folder."""
    num_bytes: int
    sha256: str


def save_checkpoint(learner: Learner, checkpoints: Path, name: str, *, keep: Collection[str]) -> list[FileDigest]:
    """Writes a checkpoint, on all ranks, and deletes the others below `checkpoints` that are not in `keep`.

    Raises, on every rank alike, `ResourceExhausted` when the disk is full; then nothing of the checkpoint stays.
    """
    ranks = learner.ranks
    folder = checkpoints / name / _FOLDER
    try:
        with ranks.together(), storage_errors(folder):
            if ranks.rank == 0:
                start_folder(folder).joinpath(_SUMMARY).write_text(json.dumps(_summary(learner)))
        error = learner.engine.save(partial_of(folder))
        ranks.agree(None if error is None else storage_error(error, folder))
        if (reference := moving_reference(learner)) is not None:
            error = write_weights(partial_of(folder) / _REFERENCE, reference.full_parameters(), ranks)
            ranks.agree(None if error is None else storage_error(error, folder))
        digests = _digest(partial_of(folder), ranks)
        with ranks.together(), storage_errors(folder):
            if ranks.rank == 0:
                finish_folder(folder)
                _delete_others(checkpoints, {name, *keep})
    except ShoalError:
        if ranks.rank == 0:
            discard_folder(folder)
        raise
    return digests


def load_checkpoint(
    learner: Learner, checkpoints: Path, name: str, *, files: Sequence[FileDigest], attempt: int
) -> None:
    """Restores a checkpoint, on all ranks, and begins an attempt.

    Raises, on every rank alike and with nothing changed: `NotFound`, `DataLoss` when a file of `files` is missing or
    is another, `FailedPrecondition` when other ranks, or another ZeRO stage, wrote it.
    """
    ranks = learner.ranks
    folder = checkpoints / name / _FOLDER
    with ranks.together():
        if not folder.is_dir():
            raise NotFound(f"there is no checkpoint {name}: {folder} does not exist", reason="NO_SUCH_CHECKPOINT")
        for file in files[ranks.rank :: ranks.size]:
            _verify(folder, file)
        if _SUMMARY not in {file.path for file in files}:
            raise DataLoss(f"checkpoint {name}: {_SUMMARY} is not among its files", reason="CHECKPOINT_DAMAGED")
        summary = _read_summary(folder)
        _check_fits(summary, learner, name)
    learner.engine.load(folder)
    if (reference := moving_reference(learner)) is not None:
        reference.load(sorted((folder / _REFERENCE).glob("*.safetensors")))
    learner.version = WeightVersion(attempt, summary["policy_version"])
    learner.num_optimizer_steps = summary["num_optimizer_steps"]
    learner.kl_coef = summary.get("kl_coef", learner.kl_coef)


def moving_reference(learner: Learner) -> ReferenceModel | None:
    """The reference, if it follows the policy; one that does not is the model that the configuration names."""
    return learner.reference if learner.config.kl.reference_update_steps is not None else None


def _summary(learner: Learner) -> dict[str, Any]:
    return {
        "num_ranks": learner.ranks.size,
        "zero_stage": learner.config.learner.zero_stage,
        "has_reference": moving_reference(learner) is not None,
        "attempt": learner.version.attempt,
        "policy_version": learner.version.policy_version,
        "num_optimizer_steps": learner.num_optimizer_steps,
        "kl_coef": learner.kl_coef,
    }


def _read_summary(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads((folder / _SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise DataLoss(f"{folder / _SUMMARY} cannot be read: {error}", reason="CHECKPOINT_DAMAGED") from error
    assert isinstance(summary, dict)
    return summary


def _check_fits(summary: dict[str, Any], learner: Learner, name: str) -> None:
    here = {
        "num_ranks": learner.ranks.size,
        "zero_stage": learner.config.learner.zero_stage,
        "has_reference": moving_reference(learner) is not None,
    }
    for field, value in here.items():
        if summary.get(field, False) != value:
            raise FailedPrecondition(
                f"checkpoint {name} was written with {field} {summary[field]}, this learner has {value}: start it with "
                f"{summary[field]}",
                reason="OTHER_SHARDING",
                metadata={field: str(summary[field])},
            )


def _digest(folder: Path, ranks: Ranks) -> list[FileDigest]:
    """The files of a folder that all ranks share; each rank hashes its part of them."""
    with ranks.together(), storage_errors(folder):
        mine = [
            {"path": path, "num_bytes": (folder / path).stat().st_size, "sha256": sha256_of(folder / path)}
            for path in list_files(folder)[ranks.rank :: ranks.size]
        ]
    parts = [json.loads(part) for part in ranks.exchange(json.dumps(mine).encode())]
    return sorted((FileDigest(**fields) for part in parts for fields in part), key=lambda file: file.path)


def _verify(folder: Path, file: FileDigest) -> None:
    path = folder / file.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataLoss(f"{file.path} is no file of the checkpoint in {folder}", reason="CHECKPOINT_DAMAGED")
    try:
        found = sha256_of(path)
    except OSError as error:
        raise DataLoss(f"{path} is missing or cannot be read: {error.strerror}", reason="CHECKPOINT_DAMAGED") from error
    if found != file.sha256:
        raise DataLoss(
            f"{path} is not what was written: its SHA-256 is {found}, the manifest says {file.sha256}",
            reason="CHECKPOINT_DAMAGED",
        )


def _delete_others(checkpoints: Path, keep: Collection[str]) -> None:
    """Deletes what the learner wrote of checkpoints that are not kept; the coordinator deletes its own part."""
    for other in checkpoints.iterdir():
        if other.name not in keep and (other / _FOLDER).is_dir():
            shutil.rmtree(other / _FOLDER, ignore_errors=True)
            discard_folder(other / _FOLDER)
