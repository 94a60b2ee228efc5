"""Checkpoints: what one consists of, when it exists, and how a run goes back to it.

A checkpoint is the learner's files (on the learner's storage), a snapshot of the ledger, and a manifest that holds
the digests of both. Renaming the manifest into place is the commit: without it there is no checkpoint.

    <run>/checkpoints/step-00000012/ledger.sqlite
    <run>/checkpoints/step-00000012/manifest.json
    <the learner's data folder>/<run id>/checkpoints/step-00000012/learner/...
"""

import asyncio
import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format

from services.coordinator.learner import Learner
from services.coordinator.ledger import Ledger
from services.coordinator.ledger_schema import check_version
from shoal.errors import DataLoss, ResourceExhausted
from shoal.v1 import learner_pb2

MANIFEST = "manifest.json"
SNAPSHOT = "ledger.sqlite"


@dataclass(frozen=True)
class CheckpointManifest:
    """What a committed checkpoint consists of."""

    checkpoint_id: str
    attempt: int
    policy_version: int
    ledger_sha256: str
    learner_files: tuple[learner_pb2.FileDigest, ...]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_folder: Path, *, keep_last: int) -> None:
        self._folder = run_folder / "checkpoints"
        self._keep_last = keep_last

    def committed(self) -> list[str]:
        """Names of the checkpoints that exist, oldest first."""
        return sorted(path.parent.name for path in self._folder.glob(f"*/{MANIFEST}"))

    async def save(self, learner: Learner, ledger: Ledger, *, attempt: int, policy_version: int) -> str:
        """Writes and commits a checkpoint of a step boundary; returns its name.

        Raises `ResourceExhausted` when a disk is full; earlier checkpoints stand.
        """
        checkpoint_id = f"step-{policy_version:08d}"
        # Committed under that name is the same step of the same lineage: a restore goes back to the newest one.
        if checkpoint_id in self.committed():
            return checkpoint_id
        keep = self.committed()[-self._keep_last :]
        written = await learner.save_checkpoint(checkpoint_id, keep)
        folder = self._folder / checkpoint_id
        try:
            await asyncio.to_thread(_make_room, folder)
            await ledger.snapshot(folder / SNAPSHOT)
            manifest = CheckpointManifest(
                checkpoint_id,
                attempt,
                policy_version,
                await asyncio.to_thread(_sha256, folder / SNAPSHOT),
                tuple(written.files),
            )
            await asyncio.to_thread(_commit, folder, manifest)
        except OSError as error:
            (folder / MANIFEST).unlink(missing_ok=True)
            if error.errno == errno.ENOSPC:
                raise ResourceExhausted(
                    f"the disk is full: checkpoint {checkpoint_id} was not written to {folder}", reason="DISK_FULL"
                ) from error
            raise
        await ledger.forget_committed_tokens()
        await asyncio.to_thread(self._delete_old)
        return checkpoint_id

    def load_manifest(self, checkpoint_id: str) -> CheckpointManifest:
        """Reads a committed checkpoint's manifest."""
        values = json.loads((self._folder / checkpoint_id / MANIFEST).read_text())
        return CheckpointManifest(
            checkpoint_id=values["checkpoint_id"],
            attempt=values["attempt"],
            policy_version=values["policy_version"],
            ledger_sha256=values["ledger_sha256"],
            learner_files=tuple(
                json_format.ParseDict(entry, learner_pb2.FileDigest()) for entry in values["learner_files"]
            ),
        )

    def restore_ledger(self, manifest: CheckpointManifest, ledger: Path, attempt: int) -> None:
        """Puts the checkpoint's ledger in the place of the run's, and keeps the one that is given up beside it."""
        snapshot = self._folder / manifest.checkpoint_id / SNAPSHOT
        if _sha256(snapshot) != manifest.ledger_sha256:
            raise DataLoss(f"{snapshot} is not what its manifest says: its SHA-256 differs")
        set_aside(ledger, attempt)
        # A reader finds no ledger or a whole one.
        copy = ledger.with_name(ledger.name + ".tmp")
        shutil.copyfile(snapshot, copy)
        copy.rename(ledger)

    def check_readable(self) -> None:
        """Raises `FailedPrecondition` when the newest checkpoint's ledger is another version's."""
        if committed := self.committed():
            check_version(self._folder / committed[-1] / SNAPSHOT)

    def _delete_old(self) -> None:
        for checkpoint_id in self.committed()[: -self._keep_last]:
            # The manifest goes first: what is left when this breaks off is no checkpoint.
            (self._folder / checkpoint_id / MANIFEST).unlink()
            shutil.rmtree(self._folder / checkpoint_id, ignore_errors=True)


def set_aside(ledger: Path, attempt: int) -> None:
    """Renames the ledger of an attempt that is given up, for people to look at."""
    for suffix in ("", "-wal", "-shm"):
        given_up = ledger.with_name(ledger.name + suffix)
        if given_up.exists():
            given_up.rename(ledger.with_name(f"{ledger.stem}.attempt-{attempt - 1}{ledger.suffix}{suffix}"))


def _make_room(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, SNAPSHOT):
        (folder / name).unlink(missing_ok=True)


def _commit(folder: Path, manifest: CheckpointManifest) -> None:
    values = {
        "checkpoint_id": manifest.checkpoint_id,
        "attempt": manifest.attempt,
        "policy_version": manifest.policy_version,
        "ledger_sha256": manifest.ledger_sha256,
        "learner_files": [
            json_format.MessageToDict(entry, preserving_proto_field_name=True) for entry in manifest.learner_files
        ],
    }
    write_atomically(folder / MANIFEST, json.dumps(values, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file so that after a crash it is either the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
