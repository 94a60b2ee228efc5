"""Recovery: takes ledger and learner to where an attempt begins."""

import asyncio
from collections.abc import Callable
from typing import Any

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.learner_client import LearnerClient
from shoal.errors import FailedPrecondition
from shoal.rollout import WeightVersion


async def recover(
    record: RunRecord, version: CurrentVersion, checkpoints: Checkpoints, ledger: Ledger, learner: LearnerClient
) -> tuple[Progress, str]:
    """Opens the ledger; on a resume, first restores ledger and learner from the last checkpoint.

    Sets `version` to the learner's. Returns the progress of the run, and the name of the checkpoint, which is empty
    without one. Raises `FailedPrecondition` when the learner's version is not the ledger's.
    """
    attempt, checkpoint_id = record.attempt, ""
    if attempt == 0:
        version.weights = await learner.version()
    elif committed := checkpoints.committed():
        checkpoint_id = committed[-1]
        manifest = checkpoints.load_manifest(checkpoint_id)
        await _to_the_end(checkpoints.restore_ledger, manifest, ledger.path, attempt)
        version.weights = await learner.load_checkpoint(checkpoint_id, manifest.learner_files, attempt)
    else:
        await _to_the_end(set_aside, ledger.path, attempt)
        await _to_the_end(replace_ledger, ledger.path, None)
        version.weights = await learner.load_checkpoint("", (), attempt)
    progress = await ledger.open()
    if version.weights != WeightVersion(attempt, progress.policy_version):
        raise FailedPrecondition(
            f"the learner is at version {version.weights}, the ledger at {attempt}.{progress.policy_version}: restart"
            " the learner and resume the run"
        )
    return progress, checkpoint_id


async def _to_the_end(work: Callable[..., None], *arguments: Any) -> None:
    """Runs work on a thread. If canceled, first waits for its end: the next attempt may begin right after this one."""
    running = asyncio.create_task(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
