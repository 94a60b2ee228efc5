"""The two parts of a checkpoint, with parts of a run that need no ledger and no learner."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.run.controls import RunControls
from services.coordinator.run.saving import Saving, StepBoundary
from services.coordinator.store.progress import Progress
from services.coordinator.store.run_record import RunRecord
from shoal.config.live import LiveConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted, ShoalError, Unavailable
from shoal.rollout import WeightVersion
from tests.support.waiting import eventually, settled

FULL = ResourceExhausted("the disk of /data is full", reason=ErrorReason.DISK_FULL)


class Parts:
    """Everything that `Saving` needs; what happens is in `happened`."""

    def __init__(self, folder: Path) -> None:
        self.happened: list[str] = []
        self.step = 0
        self.learner_version: WeightVersion | Exception = WeightVersion(1, 0)
        self.on_disk = asyncio.Event()
        """Set once the learner's files are on disk."""
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.error: Exception | None = None
        """Of the learner, instead of files on disk."""
        config: Any = LiveConfig(SimpleNamespace(checkpoint=SimpleNamespace(keep_last=2, best_metric="")))  # type: ignore[arg-type]
        self.learner = SimpleNamespace(version=self._version)
        self.saving = Saving(
            run=SimpleNamespace(
                config=config,
                controls=SimpleNamespace(changed=SimpleNamespace(notify=lambda: self.happened.append("woken"))),
                record=RunRecord("run", folder, attempt=1),
                report=self,
            ),
            policy=self,
            checkpoints=self,
            ledger=SimpleNamespace(progress=self._progress),
            full_disk=SimpleNamespace(written=lambda write: write()),
        )

    async def _version(self) -> WeightVersion:
        if isinstance(self.learner_version, Exception):
            raise self.learner_version
        return self.learner_version

    async def _progress(self) -> Progress:
        return Progress(policy_version=self.step, next_order_number=4 * self.step, num_episodes=0)

    def steps(self) -> list[int]:
        return []

    async def write(self, learner: Any, ledger: Any, progress: Progress, **_: Any) -> Any:
        step = progress.policy_version
        if f"committed {step}" in self.happened:
            return None
        self.happened.append(f"written {step}")
        moment = SimpleNamespace(close=lambda: self.happened.append(f"closed {step}"))
        return SimpleNamespace(checkpoint_id=f"step-{step:08d}", version=WeightVersion(1, step), moment=moment)

    async def learner_files(self, learner: Any, written: Any) -> list[Any]:
        await self.on_disk.wait()
        if self.error is not None:
            raise self.error
        return []

    async def commit(self, ledger: Any, written: Any, files: Any) -> None:
        self.happened.append(f"committing {written.version.policy_version}")
        await self.may_commit.wait()
        self.happened.append(f"committed {written.version.policy_version}")

    def num_bytes(self, checkpoint_id: str) -> int:
        return 1

    def checkpoint(self, checkpoint_id: str, step: int, duration_s: float, pause_s: float, *_: Any) -> None:
        assert 0 <= pause_s <= duration_s
        self.happened.append(f"reported {step}")

    def checkpoint_failed(self, step: int, why: str) -> None:
        self.happened.append(f"no room for {step}")

    async def take_step(self) -> None:
        self.step += 1
        self.learner_version = WeightVersion(1, self.step)
        self.happened.append(f"step {self.step}")
        await asyncio.wait_for(self.saving.save_if_due(1), 60)

    async def happens(self, what: str) -> None:
        await eventually(lambda: what in self.happened, what)


@pytest.fixture
async def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


async def test_a_disk_that_is_full_when_files_are_brought_there_costs_one_checkpoint_and_the_next_step_tries_again(
    parts: Parts,
) -> None:
    parts.error = FULL
    parts.on_disk.set()
    await parts.take_step()
    await parts.happens("no room for 1")
    assert (parts.saving.num_failed, parts.saving.retry_step) == (1, 2)
    parts.step = 2
    await parts.saving.save_if_due(1000)
    await parts.happens("no room for 2")
    assert (parts.saving.num_failed, parts.saving.retry_step) == (2, 4)
    parts.error, parts.step = None, 4
    await parts.saving.save_if_due(1000)
    await parts.happens("reported 4")
    await parts.saving.settle()
    assert (parts.saving.num_failed, parts.saving.retry_step) == (0, None)
    assert [each for each in parts.happened if each.startswith("closed")] == ["closed 1", "closed 2", "closed 4"]


@pytest.mark.parametrize(
    "error", [FailedPrecondition("/data cannot be written"), ResourceExhausted("a message is too large"), OSError(5)]
)
async def test_what_else_goes_wrong_beside_training_is_raised_at_the_next_boundary(
    parts: Parts, error: Exception
) -> None:
    parts.error = error
    await parts.take_step()
    parts.saving.raise_failure()
    parts.on_disk.set()
    await parts.happens("woken")
    with pytest.raises(type(error)):
        parts.saving.raise_failure()
    with pytest.raises(type(error)):
        await parts.saving.save_if_due(1)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_attempt_that_ends_gives_up_what_the_learner_has_not_finished(parts: Parts, has_begun: bool) -> None:
    await parts.take_step()
    if has_begun:
        await settled()
    await asyncio.wait_for(parts.saving.abandon(), 60)
    parts.on_disk.set()
    await settled()
    assert parts.happened == ["step 1", "written 1", "closed 1"]


async def test_an_attempt_that_ends_waits_for_a_commit(parts: Parts) -> None:
    parts.may_commit.clear()
    parts.on_disk.set()
    await parts.take_step()
    await parts.happens("committing 1")
    abandoning = asyncio.create_task(parts.saving.abandon())
    await asyncio.wait([abandoning], timeout=0.05)
    assert not abandoning.done(), "the next attempt would begin beside the commit"
    parts.may_commit.set()
    await asyncio.wait_for(abandoning, 60)
    assert "committed 1" in parts.happened


@pytest.mark.parametrize(
    ("learner_version", "num_saved"),
    [
        (WeightVersion(1, 4), 1),
        (WeightVersion(1, 5), 0),
        (WeightVersion(0, 4), 0),
        (Unavailable("the learner is gone"), 0),
    ],
)
async def test_before_a_failure_only_a_learner_that_agrees_with_the_ledger_is_saved(
    parts: Parts, learner_version: WeightVersion | ShoalError, num_saved: int
) -> None:
    parts.step, parts.learner_version = 4, learner_version
    parts.on_disk.set()
    await parts.saving.try_to_save()
    assert parts.happened.count("committed 4") == num_saved, parts.happened


async def test_a_run_that_fails_by_a_checkpoint_tries_once_more_to_save_its_steps(parts: Parts) -> None:
    parts.error = FailedPrecondition("/data cannot be written: Stale file handle")
    parts.on_disk.set()
    await parts.take_step()
    await parts.happens("woken")
    parts.error, parts.step, parts.learner_version = None, 2, WeightVersion(1, 2)
    await parts.saving.try_to_save()
    assert "reported 2" in parts.happened, parts.happened


async def test_a_request_that_is_canceled_costs_no_checkpoint_and_takes_no_other_one_with_it() -> None:
    controls = RunControls()
    gone, canceled_meanwhile, stays = (controls.request_checkpoint() for _ in range(3))
    saved: list[str] = []

    async def cancel_and_save() -> str:
        canceled_meanwhile.cancel()
        await asyncio.sleep(0)
        saved.append("step-00000004")
        return saved[-1]

    fleet: Any = SimpleNamespace(learner_is_leaving=False)
    saving: Any = SimpleNamespace(save_now=cancel_and_save, raise_failure=lambda: None)
    gone.cancel()
    await asyncio.sleep(0)
    assert await StepBoundary(controls, fleet, saving).wait_while_paused()
    assert await stays == "step-00000004"
    assert len(saved) == 2, f"{len(saved)} checkpoints, of a request that was canceled meanwhile and one that waits"
