"""Checkpoints of a run: write, commit, restore.

A checkpoint consists of the learner's files (on the learner's storage), a snapshot of the ledger, the lengths of the
segments to which the ledger refers, and a manifest with the digests of all of them. Renaming the manifest into place is
the commit: a folder without a manifest is not a checkpoint.

    <run>/checkpoints/step-00000012/ledger.sqlite
    <run>/checkpoints/step-00000012/manifest.json
    <run>/segments/...                                                         (not copied: see store/segments)
    <the learner's data folder>/<run id>/checkpoints/step-00000012/learner/...
"""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.remote.mirror_folder import Age, MirroredCheckpoint, MirroredFile
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import mirrored
from services.coordinator.store.files.disk_errors import writing
from services.coordinator.store.files.manifest import (
    DISCARDED,
    MANIFEST,
    OTHER_SNAPSHOT,
    SNAPSHOT,
    CheckpointManifest,
    read_manifest,
    write_manifest,
)
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.reading import reading
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.store.retention import kept_of
from services.coordinator.store.segments.series import Series
from services.coordinator.store.tables.moment import Moment
from services.coordinator.workers.learner_client import LearnerClient
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, ShoalError
from shoal.paths import is_step_name, step_name
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2
from shoal.wire import invalid


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint whose state is captured but not committed."""

    checkpoint_id: str
    version: WeightVersion
    next_order_number: int
    moment: Moment
    """The captured state of the ledger, which must be closed after use."""
    former: CheckpointManifest | None
    """The replaced checkpoint, whose learner files the new checkpoint uses."""
    keep: Sequence[str]
    """The earlier checkpoints that the learner keeps."""
    keep_last: int
    best: Collection[str]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self,
        run_folder: Path,
        mirroring: Mirroring | None = None,
        inputs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`mirroring` gets each new checkpoint. `inputs` has the digests of the run's inputs."""
        self._folder = run_folder / "checkpoints"
        self._mirroring = mirroring
        self._inputs = inputs or {}

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, oldest first."""
        return [int(name.rpartition("-")[2]) for name in self.committed()]

    def committed(self) -> list[str]:
        """Returns the names of the committed checkpoints, oldest first; ignores copies that somebody made."""
        names = (path.parent.name for path in self._folder.glob(f"*/{MANIFEST}"))
        return sorted(name for name in names if is_step_name(name))

    async def write(
        self,
        learner: LearnerClient,
        ledger: Ledger,
        progress: Progress,
        *,
        attempt: int,
        keep_last: int,
        best_step: int | None = None,
    ) -> WrittenCheckpoint | None:
        """Captures ledger and learner at the step boundary of `progress`; both may continue afterward.

        The commit deletes older checkpoints, except the last `keep_last` (including this one) and the checkpoint of
        `best_step`. Returns None if this boundary has a checkpoint. If all steps since the last were skipped, reuses
        the learner's files, which are unchanged. If a disk is full, captures nothing and raises `ResourceExhausted`.
        """
        checkpoint_id = step_name(progress.policy_version)
        best = {step_name(best_step)} if best_step is not None else set()
        # A checkpoint of that name is of the same lineage: a restore goes back to the newest whole checkpoint.
        former = self.load_manifest(checkpoint_id) if checkpoint_id in self.committed() else None
        if former is not None and former.next_order_number == progress.next_order_number:
            return None
        version = WeightVersion(attempt, progress.policy_version)
        keep = self._kept(keep_last, best)
        moment = await ledger.moment()
        try:
            if former is None:
                await learner.write_checkpoint(checkpoint_id, version, keep)
        except BaseException:
            moment.close()
            raise
        return WrittenCheckpoint(
            checkpoint_id, version, progress.next_order_number, moment, former, tuple(keep), keep_last, best
        )

    async def learner_files(
        self, learner: LearnerClient, written: WrittenCheckpoint
    ) -> Sequence[learner_pb2.FileDigest]:
        """Waits until the learner's files of a checkpoint are on disk. Raises `ResourceExhausted` on a full disk."""
        if written.former is not None:
            return written.former.learner_files
        return await learner.finish_checkpoint(written.checkpoint_id, written.version, written.keep)

    async def commit(self, ledger: Ledger, written: WrittenCheckpoint, files: Sequence[learner_pb2.FileDigest]) -> None:
        """Writes the ledger's snapshot and the manifest, deletes older checkpoints, and mirrors the new checkpoint.

        Raises `ResourceExhausted` if the disk is full; then only the earlier checkpoints remain.
        """
        former, folder = written.former, self._folder / written.checkpoint_id
        snapshot = OTHER_SNAPSHOT if former is not None and former.snapshot == SNAPSHOT else SNAPSHOT
        with writing(folder / snapshot), _undoing(folder if former is None else folder / snapshot):
            await asyncio.to_thread(_make_room, folder / snapshot)
            await ledger.write(written.moment, folder / snapshot)
            manifest = CheckpointManifest(
                written.checkpoint_id,
                written.version.attempt,
                written.version.policy_version,
                written.next_order_number,
                snapshot,
                await asyncio.to_thread(_sha256, folder / snapshot),
                tuple(files),
                tuple(written.moment.segments),
                self._inputs,
            )
            await asyncio.to_thread(write_manifest, folder, manifest)
        await asyncio.to_thread(self._delete_all_but, written.keep_last, written.best)
        kept = await asyncio.to_thread(self.manifests)
        await ledger.delete_tokens({segment.name for manifest in kept for segment in manifest.segments})
        if self._mirroring is not None:
            contents = await asyncio.to_thread(self.contents, written.checkpoint_id)
            self._mirroring.offer(contents, written.keep_last, written.best)

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        """Reads the manifest of a committed checkpoint. Raises `DataLoss` if the manifest cannot be read."""
        return read_manifest(self._folder / checkpoint_id)

    def load_checked(self, checkpoint_id: str) -> CheckpointManifest:
        """Reads the manifest of a committed checkpoint, and verifies the snapshot. Raises `DataLoss` for damage."""
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
        """Reads the manifests of the committed checkpoints, oldest first; skips unreadable manifests."""
        found = []
        for checkpoint_id in self.committed():
            with contextlib.suppress(DataLoss):
                found.append(self.load_manifest(checkpoint_id))
        return found

    def inputs(self) -> Mapping[str, Mapping[str, str]]:
        """Returns the digests of the newest checkpoint's inputs; empty if no manifest has them."""
        return next((manifest.inputs for manifest in reversed(self.manifests()) if manifest.inputs), {})

    def newest_age(self, names: Collection[str]) -> Age | None:
        """Returns the age of the newest checkpoint of `names`; None if none of their manifests can be read."""
        return max((manifest.age for manifest in self.manifests() if manifest.checkpoint_id in names), default=None)

    def discard(self, checkpoint_id: str) -> None:
        """Uncommits a damaged checkpoint. Its files stay until a checkpoint of the same name is written."""
        folder = self._folder / checkpoint_id
        (folder / MANIFEST).replace(folder / DISCARDED)

    def num_bytes(self, checkpoint_id: str) -> int:
        """Returns the size of a committed checkpoint: the learner's files and the ledger."""
        manifest = self.load_manifest(checkpoint_id)
        snapshot = self._folder / checkpoint_id / manifest.snapshot
        return snapshot.stat().st_size + sum(file.num_bytes for file in manifest.learner_files)

    def contents(self, checkpoint_id: str) -> MirroredCheckpoint:
        """Lists the files of a committed checkpoint, except tokens: a resume samples their groups again."""
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
        """Replaces the run's ledger with the checkpoint's, and keeps the replaced ledger in a file next to it."""
        set_aside(ledger, attempt)
        replace_ledger(ledger, self._folder / manifest.checkpoint_id / manifest.snapshot)

    def check_readable(self) -> None:
        """Raises `FailedPrecondition` if the newest checkpoint's ledger is of another version of Shoal."""
        if manifests := self.manifests():
            snapshot = self._folder / manifests[-1].checkpoint_id / manifests[-1].snapshot
            with contextlib.suppress(DataLoss), reading(snapshot):  # An attempt finds the damage.
                pass

    def _kept(self, keep_last: int, best: Collection[str]) -> list[str]:
        """Returns the committed checkpoints to keep: the last, the best, and those that are being mirrored."""
        held = self._mirroring.held if self._mirroring is not None else set()
        return kept_of(self.committed(), keep_last, {*best, *held})

    def _delete_all_but(self, keep_last: int, best: Collection[str]) -> None:
        for checkpoint_id in sorted({*self.committed()} - {*self._kept(keep_last, best)}):
            # Delete the manifest first: after an interruption the rest is not a checkpoint.
            (self._folder / checkpoint_id / MANIFEST).unlink()
            shutil.rmtree(self._folder / checkpoint_id, ignore_errors=True)
        for folder in self._folder.iterdir():
            if is_step_name(folder.name) and not any((folder / name).exists() for name in (MANIFEST, DISCARDED)):
                _delete_snapshots(folder)


def check_num_steps(before: RunConfig, config: RunConfig, checkpoints: Checkpoints) -> None:
    """Raises `InvalidArgument` if a change ends the run before the step from which it is resumed.

    If `config.run.num_steps` is 0, the number is not yet known.
    """
    manifests = checkpoints.manifests()
    if not manifests or config.run.num_steps in (0, before.run.num_steps):
        return
    step = manifests[-1].policy_version
    if config.run.num_steps < step:
        raise invalid(
            "run.num_steps", f"must be at least {step}, the step of the last checkpoint (given: {config.run.num_steps})"
        )


@contextlib.contextmanager
def _undoing(path: Path) -> Iterator[None]:
    """Deletes a file or folder if the block raises, so that half a checkpoint takes no room on a full disk."""
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


def _delete_snapshots(folder: Path) -> None:
    """Deletes the checkpoint files that a killed coordinator has left behind. The learner deletes its own files."""
    for name in (SNAPSHOT, OTHER_SNAPSHOT):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
