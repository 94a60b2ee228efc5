"""Checkpoints of a run: write, commit, restore.

A checkpoint is the learner's files (on the learner's storage), a snapshot of the ledger, the lengths of the segments
that it refers to, and a manifest that holds the digests of all of them. Renaming the manifest into place is the commit:
a folder without a manifest is no checkpoint.

    <run>/checkpoints/step-00000012/ledger.sqlite
    <run>/checkpoints/step-00000012/manifest.json
    <run>/segments/...                                                         (not copied: see store/segments)
    <the learner's data folder>/<run id>/checkpoints/step-00000012/learner/...
"""

import asyncio
import contextlib
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from google.protobuf import json_format
from pydantic import BaseModel, ConfigDict, ValidationError

from services.coordinator.remote.mirror_folder import Age, MirroredCheckpoint, MirroredFile
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import mirrored
from services.coordinator.store.files.atomic_write import write_atomically
from services.coordinator.store.files.disk_errors import writing
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.reading import reading
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.store.segments.segment import SegmentDigest
from services.coordinator.store.segments.series import Series
from services.coordinator.workers.learner_client import LearnerClient
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, ShoalError
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2
from shoal.wire import invalid
from shoal.wire.json_form import json_form

MANIFEST = "manifest.json"
DISCARDED = "manifest.damaged.json"
"""The name that the manifest of a damaged checkpoint gets, which is none from then on."""
SNAPSHOT, OTHER_SNAPSHOT = "ledger.sqlite", "ledger-2.sqlite"
"""The ledger's snapshot, and its name where one replaces the other: the manifest says which of the two counts."""


@dataclass(frozen=True)
class CheckpointManifest:
    """The contents of a committed checkpoint."""

    checkpoint_id: str
    attempt: int
    policy_version: int
    next_order_number: int
    """The first group that no step before the checkpoint has used up."""
    snapshot: str
    """Name of the ledger's snapshot."""
    ledger_sha256: str
    learner_files: tuple[learner_pb2.FileDigest, ...]
    segments: tuple[SegmentDigest, ...] = ()
    """The segments that the ledger's snapshot refers to, up to their lengths at that moment."""

    @property
    def age(self) -> Age:
        """By which checkpoints are ordered: attempt, step, and the groups that are used up."""
        return self.attempt, self.policy_version, self.next_order_number


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_folder: Path, mirroring: Mirroring | None = None) -> None:
        """`mirroring` gets each new checkpoint, and has those that it copies kept meanwhile."""
        self._folder = run_folder / "checkpoints"
        self._mirroring = mirroring

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, oldest first."""
        return [int(name.rpartition("-")[2]) for name in self.committed()]

    def committed(self) -> list[str]:
        """Returns the names of the committed checkpoints, oldest first."""
        return sorted(path.parent.name for path in self._folder.glob(f"*/{MANIFEST}"))

    async def save(
        self, learner: LearnerClient, ledger: Ledger, *, attempt: int, keep_last: int, best_step: int | None = None
    ) -> tuple[str, bool]:
        """Writes and commits a checkpoint at a step boundary; returns its name, and whether it is new.

        Older ones are deleted, except the last ones, `keep_last` with it, and that of `best_step`.

        Where the last one is of the same policy version, and only skipped steps came after it, the learner is
        unchanged: its files stay, and a new snapshot of the ledger replaces the former. Raises `ResourceExhausted`
        when a disk is full; earlier checkpoints remain, and nothing of the new one.
        """
        progress = await ledger.progress()
        checkpoint_id = checkpoint_name(progress.policy_version)
        best = {checkpoint_name(best_step)} if best_step is not None else set()
        folder = self._folder / checkpoint_id
        # A checkpoint of that name is of the same lineage: a restore goes back to the newest one that is whole.
        former = self.load_manifest(checkpoint_id) if checkpoint_id in self.committed() else None
        if former is None:
            version = WeightVersion(attempt, progress.policy_version)
            saved = await learner.save_checkpoint(checkpoint_id, version, self._kept(keep_last, best))
            learner_files = tuple(saved.files)
        elif former.next_order_number == progress.next_order_number:
            return checkpoint_id, False
        else:
            learner_files = former.learner_files
        snapshot = OTHER_SNAPSHOT if former is not None and former.snapshot == SNAPSHOT else SNAPSHOT
        with writing(folder / snapshot), _undoing(folder if former is None else folder / snapshot):
            await asyncio.to_thread(_make_room, folder / snapshot)
            segments = await ledger.snapshot(folder / snapshot)
            manifest = CheckpointManifest(
                checkpoint_id,
                attempt,
                progress.policy_version,
                progress.next_order_number,
                snapshot,
                await asyncio.to_thread(_sha256, folder / snapshot),
                learner_files,
                tuple(segments),
            )
            await asyncio.to_thread(_commit, folder, manifest)
        await asyncio.to_thread(self._delete_all_but, keep_last, best)
        kept = await asyncio.to_thread(self.manifests)
        await ledger.delete_tokens({segment.name for manifest in kept for segment in manifest.segments})
        if self._mirroring is not None:
            self._mirroring.offer(await asyncio.to_thread(self.contents, checkpoint_id), keep_last, best)
        return checkpoint_id, True

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        """Reads the manifest of a committed checkpoint. Raises `DataLoss` when it cannot be read."""
        path = self._folder / checkpoint_id / MANIFEST
        try:
            manifest = _parse(path.read_bytes())
            if manifest.checkpoint_id != checkpoint_id:
                raise ValueError(f"it is that of {manifest.checkpoint_id!r}")
        except (OSError, ValueError, json_format.ParseError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise DataLoss(f"{path} cannot be read: {why}", reason=ErrorReason.CHECKPOINT_DAMAGED) from None
        return manifest

    def load_checked(self, checkpoint_id: str) -> CheckpointManifest:
        """Reads the manifest of a committed checkpoint, and verifies the ledger's snapshot. Raises `DataLoss`."""
        manifest = self.load_manifest(checkpoint_id)
        snapshot = self._folder / checkpoint_id / manifest.snapshot
        try:
            found = _sha256(snapshot)
        except OSError as error:
            raise DataLoss(
                f"{snapshot} cannot be read: {error.strerror}", reason=ErrorReason.CHECKPOINT_DAMAGED
            ) from None
        if found != manifest.ledger_sha256:
            raise DataLoss(
                f"{snapshot} differs from its manifest: the SHA-256 digests do not match",
                reason=ErrorReason.CHECKPOINT_DAMAGED,
            )
        return manifest

    def manifests(self) -> list[CheckpointManifest]:
        """Reads the manifests of the committed checkpoints, oldest first, without those that cannot be read."""
        found = []
        for checkpoint_id in self.committed():
            with contextlib.suppress(DataLoss):
                found.append(self.load_manifest(checkpoint_id))
        return found

    def newest_age(self, names: Collection[str]) -> Age | None:
        """Returns the age of the newest of some checkpoints; None where no manifest of them can be read."""
        return max((manifest.age for manifest in self.manifests() if manifest.checkpoint_id in names), default=None)

    def discard(self, checkpoint_id: str) -> None:
        """Takes a damaged checkpoint out of the committed ones. Its files stay until one of its name is written."""
        folder = self._folder / checkpoint_id
        (folder / MANIFEST).replace(folder / DISCARDED)

    def num_bytes(self, checkpoint_id: str) -> int:
        """Returns the size of a committed checkpoint: the learner's files and the ledger."""
        manifest = self.load_manifest(checkpoint_id)
        snapshot = self._folder / checkpoint_id / manifest.snapshot
        return snapshot.stat().st_size + sum(file.num_bytes for file in manifest.learner_files)

    def contents(self, checkpoint_id: str) -> MirroredCheckpoint:
        """Lists the files of a committed checkpoint, without tokens, whose groups a resume samples again."""
        manifest = self.load_manifest(checkpoint_id)
        path = f"{self._folder.name}/{checkpoint_id}"
        text = (self._folder / checkpoint_id / MANIFEST).read_bytes()
        snapshot = self._folder / checkpoint_id / manifest.snapshot
        files = [
            MirroredFile(f"{path}/{MANIFEST}", len(text), hashlib.sha256(text).hexdigest()),
            MirroredFile(f"{path}/{manifest.snapshot}", snapshot.stat().st_size, manifest.ledger_sha256),
            *(
                MirroredFile(f"{path}/learner/{each.path}", each.num_bytes, each.sha256)
                for each in manifest.learner_files
            ),
            *(mirrored(each) for each in manifest.segments if not each.name.startswith(Series.TOKENS)),
        ]
        return MirroredCheckpoint(
            manifest.attempt, manifest.policy_version, manifest.next_order_number, checkpoint_id, tuple(files)
        )

    def restore_ledger(self, manifest: CheckpointManifest, ledger: Path, attempt: int) -> None:
        """Replaces the run's ledger by the checkpoint's; keeps the abandoned one beside it."""
        set_aside(ledger, attempt)
        replace_ledger(ledger, self._folder / manifest.checkpoint_id / manifest.snapshot)

    def check_readable(self) -> None:
        """Raises `FailedPrecondition` when the newest checkpoint's ledger is of another version of Shoal."""
        if manifests := self.manifests():
            snapshot = self._folder / manifests[-1].checkpoint_id / manifests[-1].snapshot
            with contextlib.suppress(DataLoss), reading(snapshot):  # An attempt finds out what is damaged.
                pass

    def _kept(self, keep_last: int, best: Collection[str]) -> list[str]:
        """Returns the committed checkpoints that stay: the last ones, the best, and those that are being mirrored."""
        committed = self.committed()
        held = self._mirroring.held if self._mirroring is not None else set()
        return [name for name in committed if name in {*committed[-keep_last:], *best, *held}]

    def _delete_all_but(self, keep_last: int, best: Collection[str]) -> None:
        for checkpoint_id in sorted({*self.committed()} - {*self._kept(keep_last, best)}):
            # Delete the manifest first: if this is interrupted, the rest is no checkpoint.
            (self._folder / checkpoint_id / MANIFEST).unlink()
            shutil.rmtree(self._folder / checkpoint_id, ignore_errors=True)


def checkpoint_name(step: int) -> str:
    """Names the checkpoint of a step."""
    return f"step-{step:08d}"


def check_num_steps(before: RunConfig, config: RunConfig, checkpoints: Checkpoints) -> None:
    """Raises `InvalidArgument` when a change ends the run before the step that it is resumed from.

    A number of steps of 0 is not known yet: it is counted with the prompts.
    """
    manifests = checkpoints.manifests()
    if not manifests or config.run.num_steps in (0, before.run.num_steps):
        return
    step = manifests[-1].policy_version
    if config.run.num_steps < step:
        raise invalid(
            "run.num_steps", f"must be at least {step}, the step of the last checkpoint (given: {config.run.num_steps})"
        )


class _StoredManifest(BaseModel):
    """A manifest as it lies on disk, with its types."""

    model_config = ConfigDict(strict=True)

    checkpoint_id: str
    attempt: int
    policy_version: int
    next_order_number: int = -1
    snapshot: Literal["ledger.sqlite", "ledger-2.sqlite"] = "ledger.sqlite"
    ledger_sha256: str
    learner_files: list[dict[str, Any]]
    segments: list[SegmentDigest] = []


def _parse(text: bytes) -> CheckpointManifest:
    """Raises ValueError, or `json_format.ParseError`, for a text that is no manifest."""
    try:
        stored = _StoredManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    files = [json_format.ParseDict(entry, learner_pb2.FileDigest()) for entry in stored.learner_files]
    fields = {name: getattr(stored, name) for name in _StoredManifest.model_fields}
    return CheckpointManifest(**fields | {"learner_files": tuple(files), "segments": tuple(stored.segments)})


@contextlib.contextmanager
def _undoing(path: Path) -> Iterator[None]:
    """Deletes a file or folder if the block raises: on a full disk half a checkpoint takes the room of a whole one."""
    try:
        yield
    except (OSError, ShoalError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        raise


def _make_room(snapshot: Path) -> None:
    snapshot.parent.mkdir(parents=True, exist_ok=True)
    snapshot.unlink(missing_ok=True)


def _commit(folder: Path, manifest: CheckpointManifest) -> None:
    values = {
        "checkpoint_id": manifest.checkpoint_id,
        "attempt": manifest.attempt,
        "policy_version": manifest.policy_version,
        "next_order_number": manifest.next_order_number,
        "snapshot": manifest.snapshot,
        "ledger_sha256": manifest.ledger_sha256,
        "learner_files": [json_form(entry) for entry in manifest.learner_files],
        "segments": [asdict(entry) for entry in manifest.segments],
    }
    write_atomically(folder / MANIFEST, json.dumps(values, indent=2) + "\n")
    for name in {SNAPSHOT, OTHER_SNAPSHOT} - {manifest.snapshot}:
        (folder / name).unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
