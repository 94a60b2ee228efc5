"""Checkpoints and snapshots of the ledger that are written in one go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.segments.segment import SegmentDigest
from services.coordinator.workers.learner_client import LearnerClient
from shoal.paths import step_name


async def save_whole(
    checkpoints: Checkpoints,
    learner: Any,
    ledger: Ledger,
    *,
    attempt: int = 0,
    keep_last: int = 2,
    best_step: int | None = None,
) -> tuple[str, bool]:
    """Writes and commits a checkpoint; returns its name, and whether it is new."""
    client, progress = cast(LearnerClient, learner), await ledger.progress()
    written = await checkpoints.write(
        client, ledger, progress, attempt=attempt, keep_last=keep_last, best_step=best_step
    )
    if written is not None:
        try:
            await checkpoints.commit(ledger, written, await checkpoints.learner_files(client, written))
        finally:
            written.moment.close()
    return step_name(progress.policy_version), written is not None


async def write_snapshot(ledger: Ledger, path: Path) -> Sequence[SegmentDigest]:
    """Writes the ledger as it is now; returns the segments that it needs."""
    moment = await ledger.moment()
    try:
        await ledger.write(moment, path)
    finally:
        moment.close()
    return moment.segments
