"""Saves of a learner whose commands need no torch."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from services.learner.checkpoint_saves import CheckpointSaves
from services.learner.storage.checkpoints import FileDigest
from shoal.errors import ResourceExhausted
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2
from shoal.wire import version_to_wire
from tests.support.waiting import eventually

Files = list[FileDigest]
FILES = [FileDigest("shard", 1, "00")]


class Learner:
    """What `CheckpointSaves` needs of the service. A test ends each save by its future."""

    def __init__(self) -> None:
        self.version = WeightVersion(0, 3)
        self.begun: list[Future[Files]] = []
        self.failures: list[str] = []
        self.files_are_there = True
        self.num_steps, self.num_saved = 5, 0
        learner = SimpleNamespace(version=self.version)
        self.commands: Any = SimpleNamespace(
            learner=learner,
            save_checkpoint=self._save,
            has_files=lambda *_: self.files_are_there,
        )
        self.saves = CheckpointSaves(self, self, self)  # type: ignore[arg-type]

    def _save(self, request: Any, progress: Any) -> "Future[Files]":
        self.begun.append(Future())
        return self.begun[-1]

    def require_ready(self) -> tuple[Any, None]:
        return self.commands, None

    async def run(self, command: Any, request: Any, within_s: Any, work: Any, check: Any) -> Any:
        return work(self.commands)

    def progress(self, message: str) -> None:
        pass

    def fail(self, reason: str) -> None:
        self.failures.append(reason)

    def saved(self, num_steps: int) -> None:
        self.num_saved = num_steps

    async def write(self, within_s: float | None = None) -> Any:
        request = learner_pb2.LearnerServiceSaveCheckpointRequest(
            checkpoint_id="c", expected_version=version_to_wire(WeightVersion(0, 3))
        )
        return await self.saves.write(request, within_s)


async def test_a_save_that_is_asked_for_again_is_the_same_whatever_steps_are_taken_meanwhile() -> None:
    learner = Learner()
    first = await learner.write()
    learner.num_steps, learner.version = 7, WeightVersion(0, 5)
    assert await learner.write() is first
    learner.begun[0].set_result(FILES)
    assert await first.finished == FILES
    assert await learner.write() is first and len(learner.begun) == 1
    assert learner.num_saved == 5, "steps after the save are not in it"


async def test_a_save_that_failed_begins_again_only_while_the_learner_has_its_version() -> None:
    learner = Learner()
    for _ in range(2):
        save = await learner.write()
        learner.begun[-1].set_exception(ResourceExhausted("the disk is full"))
        with pytest.raises(ResourceExhausted):
            await save.finished
    assert len(learner.begun) == 2 and learner.num_saved == 0
    learner.version = WeightVersion(0, 4)
    assert await learner.write() is save, "it cannot be saved any more: its error is what a repeat gets"


async def test_a_save_whose_files_are_gone_begins_again() -> None:
    learner = Learner()
    save = await learner.write()
    learner.begun[0].set_result(FILES)
    await save.finished
    learner.files_are_there = False
    assert await learner.write() is not save


async def test_a_checkpoint_that_is_not_on_disk_by_its_callers_deadline_ends_the_learner() -> None:
    learner = Learner()
    save = await learner.write(within_s=0.05)
    await eventually(lambda: learner.failures)
    assert "checkpoint c " in learner.failures[0]
    assert not save.finished.done() and not learner.num_saved
    save.finished.cancel()
    await asyncio.wait([save.finished])
