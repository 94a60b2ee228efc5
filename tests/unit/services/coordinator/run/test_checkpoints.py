import errno
from pathlib import Path
from typing import Any, cast

import pytest

from services.coordinator.run import checkpoints as module
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.workers.learner_client import LearnerClient
from shoal.errors import ResourceExhausted
from shoal.v1 import learner_pb2


class Learner:
    """Counts the checkpoints that it writes."""

    num_saved = 0

    async def save_checkpoint(self, checkpoint_id: str, keep: Any) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        self.num_saved += 1
        return learner_pb2.LearnerServiceSaveCheckpointResponse(files=[learner_pb2.FileDigest(path=checkpoint_id)])


async def step_to(ledger: Ledger, policy_version: int, next_order_number: int) -> None:
    progress = Progress(policy_version, next_order_number, num_episodes=0)
    await ledger.step_done(progress, trained=(), dropped=())


async def restored(checkpoints: Checkpoints, folder: Path) -> Progress:
    """Restores the newest checkpoint's ledger below another folder, and returns its progress."""
    manifest = checkpoints.load_manifest(checkpoints.committed()[-1])
    folder.mkdir()
    checkpoints.restore_ledger(manifest, folder / "ledger.sqlite", attempt=1)
    ledger = Ledger(folder / "ledger.sqlite", attempt=1)
    try:
        return await ledger.open()
    finally:
        await ledger.close()


async def test_a_checkpoint_moves_on_with_skipped_steps_and_keeps_the_learners_files(tmp_path: Path) -> None:
    learner, checkpoints = Learner(), Checkpoints(tmp_path, keep_last=2)
    client = cast(LearnerClient, learner)
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    for policy_version, next_order_number, is_new in ((0, 0, True), (0, 0, False), (0, 4, True), (0, 8, True)):
        await step_to(ledger, policy_version, next_order_number)
        saved = await checkpoints.save(client, ledger, attempt=0)
        assert saved == ("step-00000000", is_new), f"after group {next_order_number}: {saved}"
        assert checkpoints.num_bytes("step-00000000") > 4096, "its ledger is not counted"
    assert learner.num_saved == 1, f"the learner wrote the same weights {learner.num_saved} times"
    assert len(list(tmp_path.glob("checkpoints/*/ledger*.sqlite"))) == 1
    assert (await restored(checkpoints, tmp_path / "restored")).next_order_number == 8
    await step_to(ledger, 1, 12)
    assert await checkpoints.save(client, ledger, attempt=0) == ("step-00000001", True)
    await ledger.close()


async def test_a_checkpoint_that_cannot_move_on_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, client = Checkpoints(tmp_path, keep_last=2), cast(LearnerClient, Learner())
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await step_to(ledger, 3, 4)
    await checkpoints.save(client, ledger, attempt=0)
    await step_to(ledger, 3, 8)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        with pytest.raises(ResourceExhausted, match="step-00000003"):
            await checkpoints.save(client, ledger, attempt=0)
    assert (await restored(checkpoints, tmp_path / "before")).next_order_number == 4
    await checkpoints.save(client, ledger, attempt=0)
    assert (await restored(checkpoints, tmp_path / "after")).next_order_number == 8
    await ledger.close()
