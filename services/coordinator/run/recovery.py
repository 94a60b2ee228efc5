"""Recovery: restores the ledger and the learner to the step at which an attempt begins."""

import asyncio
from functools import partial

from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.policy import Policy
from services.coordinator.run.run_parts import RunParts
from services.coordinator.store.files.manifest import CheckpointManifest
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.workers.learner_client import LearnerClient
from shoal.concurrency import to_the_end
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound
from shoal.rollout import WeightVersion


async def recover(
    run: RunParts, policy: Policy, checkpoints: Checkpoints, ledger: Ledger, mirroring: Mirroring, full_disk: FullDisk
) -> tuple[Progress, CheckpointManifest | None]:
    """Opens the ledger. In every attempt but the first, also restores ledger and learner from the last checkpoint.

    Sets the policy's version to the learner's version. Returns the progress of the run, and the checkpoint, if there is
    one. If a checkpoint is damaged, reports it, and restores the newest checkpoint of the mirror, or the previous
    checkpoint if the mirror has no newer one. Raises `DataLoss` if no checkpoint is whole, and `FailedPrecondition` if
    learner and ledger have different versions.
    """
    record, version, learner, written = run.record, policy.version, policy.learner, full_disk.written
    attempt, manifest = record.attempt, None
    if attempt == 0:
        version.weights = await learner.version()
    elif checkpoints.committed() or record.last_checkpoint_id:
        manifest, version.weights = await _load_newest_whole(run, learner, checkpoints, mirroring)
        await written(partial(to_the_end, checkpoints.restore_ledger, manifest, ledger.path, attempt))
        for damaged in [name for name in checkpoints.committed() if name > manifest.checkpoint_id]:
            checkpoints.discard(damaged)
    else:
        await written(partial(to_the_end, set_aside, ledger.path, attempt))
        await written(partial(to_the_end, replace_ledger, ledger.path, None))
        version.weights = await learner.load_checkpoint("", (), attempt)
    progress = await written(ledger.open)
    if version.weights != WeightVersion(attempt, progress.policy_version):
        raise FailedPrecondition(
            f"the learner has version {version.weights}, but the ledger has {attempt}.{progress.policy_version}: "
            "restart the learner and resume the run"
        )
    return progress, manifest


async def _load_newest_whole(
    run: RunParts, learner: LearnerClient, checkpoints: Checkpoints, mirroring: Mirroring
) -> tuple[CheckpointManifest, WeightVersion]:
    """Loads the newest checkpoint with only unchanged files into the learner."""

    async def load(checkpoint_id: str) -> tuple[CheckpointManifest, WeightVersion]:
        manifest = await asyncio.to_thread(checkpoints.load_checked, checkpoint_id)
        return manifest, await learner.load_checkpoint(checkpoint_id, manifest.learner_files, run.record.attempt)

    problems = []
    waiting = checkpoints.committed()
    while True:
        if waiting:
            checkpoint_id = waiting.pop()
            try:
                return await load(checkpoint_id)
            except (DataLoss, NotFound) as error:
                run.report.checkpoint_damaged(checkpoint_id, error.message)
                problems.append(f"{checkpoint_id}: {error.message}")
        if fetched := await mirroring.take_back(await asyncio.to_thread(checkpoints.newest_age, waiting)):
            try:
                return await load(fetched)
            except (DataLoss, NotFound) as error:
                problems.append(f"{fetched}, taken from the mirror: {error.message}")
        if not waiting:
            break
    found = "; ".join(problems) or "all are gone"
    raise DataLoss(
        f"no checkpoint can be restored: {found}; put the original files back, or start a new run",
        reason=ErrorReason.CHECKPOINT_DAMAGED,
    )
