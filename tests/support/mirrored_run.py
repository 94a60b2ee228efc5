"""A run's folder with checkpoints of a real ledger and of a learner that writes files and trains nothing."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.coordinator.remote.mirror_folder import RunPlaces
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.run_record import RunRecord
from shoal.rollout import Prompt, WeightVersion
from shoal.v1 import learner_pb2
from tests.support.configs import run_config
from tests.support.whole_checkpoints import save_whole


class FileLearner:
    """Writes two files of a checkpoint into the run's folder."""

    def __init__(self, run_folder: Path) -> None:
        self._checkpoints = run_folder / "checkpoints"
        self.kept: Sequence[str] = ()

    async def write_checkpoint(self, checkpoint_id: str, version: WeightVersion, keep: Sequence[str]) -> None:
        self.kept = keep

    async def finish_checkpoint(
        self, checkpoint_id: str, version: WeightVersion, keep: Sequence[str]
    ) -> Sequence[learner_pb2.FileDigest]:
        folder = self._checkpoints / checkpoint_id / "learner"
        (folder / "zero").mkdir(parents=True)
        response = learner_pb2.LearnerServiceSaveCheckpointResponse()
        for name, size in (("learner.json", 100), ("zero/rank_0.pt", 300_000)):
            content = (checkpoint_id.encode() * size)[:size]
            (folder / name).write_bytes(content)
            response.files.add(path=name, num_bytes=size, sha256=hashlib.sha256(content).hexdigest())
        return response.files


class MirroredRun:
    """The run "sums", whose checkpoints are written one after the other."""

    def __init__(self, data_dir: Path, learner_data_dir: Path | None = None) -> None:
        self.folder = data_dir / "sums"
        self.folder.mkdir(parents=True)
        self.record = RunRecord("sums", self.folder)
        self.record.save_config(run_config())
        self.record.save()
        self.ledger = Ledger(self.folder / "ledger.sqlite", attempt=0)
        self.checkpoints = Checkpoints(self.folder)
        self.places = RunPlaces(self.folder, (learner_data_dir or data_dir) / "sums")
        self.learner = FileLearner(self.places.learner_folder)

    async def open(self) -> "MirroredRun":
        await self.ledger.open()
        return self

    async def save(
        self, step: int, best_step: int | None = None, *, keep_last: int = 2, text: str | None = None
    ) -> str:
        """Issues the group of a step, of a prompt, and writes the step's checkpoint; returns its name."""
        prompt = Prompt(f"sums:{step}", np.arange(3, dtype=np.int32), text or f"question {step}", ())
        await self.ledger.issued(step, step, f"g{step}", prompt, "", step, "")
        await self.ledger.step_done(Progress(step, step + 1, step), trained=(), dropped=((step, "no_signal"),))
        self.record.policy_version = step
        self.record.save()
        checkpoint_id, _ = await save_whole(
            self.checkpoints, self.learner, self.ledger, keep_last=keep_last, best_step=best_step
        )
        return checkpoint_id
