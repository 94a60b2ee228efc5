"""Recovery: takes ledger and learner to where an attempt begins."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.files.manifest import CheckpointManifest
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.replacement import replace_ledger, set_aside
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.learner_client import LearnerClient
from shoal.concurrency import to_the_end
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound
from shoal.rollout import WeightVersion

ResultT = TypeVar("ResultT")


class Written(Protocol):
    """Awaits a write, and may repeat it while it raises that the disk is full."""

    def __call__(self, write: Callable[[], Awaitable[ResultT]], /) -> Awaitable[ResultT]:
        """Returns the result of `write`."""


async def recover(
    record: RunRecord,
    version: CurrentVersion,
    checkpoints: Checkpoints,
    ledger: Ledger,
    learner: LearnerClient,
    mirroring: Mirroring,
    *,
    report_damaged: Callable[[str, str], None],
    written: Written,
) -> tuple[Progress, CheckpointManifest | None]:
    """Opens the ledger; in a later attempt than the first, restores ledger and learner from the last checkpoint before.

    Sets `version` to the learner's. Returns the progress of the run, and the checkpoint, if there is one. Calls
    `report_damaged` with the name of each checkpoint that is damaged, and how; the mirror's newest is restored then, or
    the one before it where the mirror has no newer one. `written` awaits each write, and may repeat those that raise
    that the disk is full. Raises `DataLoss` when none is whole, and `FailedPrecondition` when the learner's version is
    not the ledger's.
    """
    attempt, manifest = record.attempt, None
    if attempt == 0:
        version.weights = await learner.version()
    elif checkpoints.committed() or record.last_checkpoint_id:
        manifest, version.weights = await _load_newest_whole(checkpoints, mirroring, learner, attempt, report_damaged)
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
            f"the learner is at version {version.weights}, the ledger at {attempt}.{progress.policy_version}: restart"
            " the learner and resume the run"
        )
    return progress, manifest


async def _load_newest_whole(
    checkpoints: Checkpoints,
    mirroring: Mirroring,
    learner: LearnerClient,
    attempt: int,
    report_damaged: Callable[[str, str], None],
) -> tuple[CheckpointManifest, WeightVersion]:
    """Loads the newest checkpoint whose files are all as they were written into the learner."""

    async def load(checkpoint_id: str) -> tuple[CheckpointManifest, WeightVersion]:
        manifest = await asyncio.to_thread(checkpoints.load_checked, checkpoint_id)
        return manifest, await learner.load_checkpoint(checkpoint_id, manifest.learner_files, attempt)

    problems = []
    waiting = checkpoints.committed()
    while True:
        if waiting:
            checkpoint_id = waiting.pop()
            try:
                return await load(checkpoint_id)
            except (DataLoss, NotFound) as error:
                report_damaged(checkpoint_id, error.message)
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
        f"no checkpoint can be restored: {found}; restore the files, or begin again with a new run",
        reason=ErrorReason.CHECKPOINT_DAMAGED,
    )
