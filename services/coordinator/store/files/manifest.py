"""The manifest of a checkpoint: the parts of the checkpoint with their digests. The manifest commits the checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from google.protobuf import json_format
from pydantic import BaseModel, ConfigDict, ValidationError

from services.coordinator.store.files.atomic_write import write_atomically
from services.coordinator.store.segments.segment import SegmentDigest
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss
from shoal.v1 import learner_pb2
from shoal.wire.json_form import json_form

MANIFEST = "manifest.json"
DISCARDED = "manifest.damaged.json"
"""The name to which a damaged checkpoint's manifest is renamed. Its folder then no longer counts as a checkpoint."""
SNAPSHOT, OTHER_SNAPSHOT = "ledger.sqlite", "ledger-2.sqlite"
"""The names of the ledger's snapshot: one may replace the other, and the manifest names the valid one."""


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
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """SHA-256 of the run's inputs, in the form of `RunRecord.inputs`."""

    @property
    def age(self) -> tuple[int, int, int]:
        """The order of checkpoints: by attempt, step, and the number of used-up groups."""
        return self.attempt, self.policy_version, self.next_order_number


def read_manifest(folder: Path) -> CheckpointManifest:
    """Reads the manifest of a committed checkpoint. Raises `DataLoss` when it cannot be read."""
    path = folder / MANIFEST
    try:
        manifest = _parse(path.read_bytes())
        if manifest.checkpoint_id != folder.name:
            raise ValueError(f"it belongs to checkpoint {manifest.checkpoint_id!r}")
    except (OSError, ValueError, json_format.ParseError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataLoss(f"{path} cannot be read: {why}", reason=ErrorReason.CHECKPOINT_DAMAGED) from None
    return manifest


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Commits a checkpoint by writing its manifest. Deletes the snapshot that the manifest does not name."""
    values = {
        "checkpoint_id": manifest.checkpoint_id,
        "attempt": manifest.attempt,
        "policy_version": manifest.policy_version,
        "next_order_number": manifest.next_order_number,
        "snapshot": manifest.snapshot,
        "ledger_sha256": manifest.ledger_sha256,
        "learner_files": [json_form(entry) for entry in manifest.learner_files],
        "segments": [asdict(entry) for entry in manifest.segments],
        "inputs": manifest.inputs,
    }
    write_atomically(folder / MANIFEST, json.dumps(values, indent=2) + "\n")
    for name in {SNAPSHOT, OTHER_SNAPSHOT} - {manifest.snapshot}:
        (folder / name).unlink(missing_ok=True)


class _StoredManifest(BaseModel):
    """A manifest in the form of its file, with types."""

    model_config = ConfigDict(strict=True)

    checkpoint_id: str
    attempt: int
    policy_version: int
    next_order_number: int = -1
    snapshot: Literal["ledger.sqlite", "ledger-2.sqlite"] = "ledger.sqlite"
    ledger_sha256: str
    learner_files: list[dict[str, Any]]
    segments: list[SegmentDigest] = []
    inputs: dict[str, dict[str, str]] = {}


def _parse(text: bytes) -> CheckpointManifest:
    """Raises ValueError, or `json_format.ParseError`, for a text that is not a manifest."""
    try:
        stored = _StoredManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    files = [json_format.ParseDict(entry, learner_pb2.FileDigest()) for entry in stored.learner_files]
    fields = {name: getattr(stored, name) for name in _StoredManifest.model_fields}
    return CheckpointManifest(**fields | {"learner_files": tuple(files), "segments": tuple(stored.segments)})
