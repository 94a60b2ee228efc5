import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.rollout.controls import RunControls
from services.coordinator.run.step_boundary import StepBoundary
from services.coordinator.store.progress import Progress
from shoal.errors import Unavailable
from shoal.rollout import WeightVersion


def boundary(learner_version: WeightVersion | Exception, saved: list[int]) -> StepBoundary:
    """A boundary of attempt 1, whose ledger is at version 4, and whose checkpoints are counted in `saved`."""

    async def version() -> WeightVersion:
        if isinstance(learner_version, Exception):
            raise learner_version
        return learner_version

    async def progress() -> Progress:
        return Progress(policy_version=4, next_order_number=16, num_episodes=64)

    async def save(*_: Any, attempt: int, keep_last: int, best_step: int | None) -> tuple[str, bool]:
        saved.append(attempt)
        return "step-00000004", False

    parts: dict[str, Any] = {
        "config": SimpleNamespace(checkpoint=SimpleNamespace(keep_last=2)),
        "record": SimpleNamespace(attempt=1, last_checkpoint_id="step-00000004"),
        "learner": SimpleNamespace(version=version),
        "ledger": SimpleNamespace(progress=progress),
        "checkpoints": SimpleNamespace(save=save, steps=lambda: [2]),
        "controls": None,
        "version": SimpleNamespace(policy_version=4),
        "report": SimpleNamespace(best_checkpoint=lambda steps: None),
        "full_disk": None,
    }
    return StepBoundary(**parts)


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
    learner_version: WeightVersion | Exception, num_saved: int
) -> None:
    saved: list[int] = []
    await boundary(learner_version, saved).try_to_save()
    assert len(saved) == num_saved, f"{len(saved)} checkpoints of a learner at {learner_version}"


async def test_a_request_that_is_canceled_costs_no_checkpoint_and_takes_no_other_one_with_it() -> None:
    saved: list[int] = []
    step = boundary(WeightVersion(1, 4), saved)
    step.controls = controls = RunControls()
    step.learner.is_leaving = False
    gone, canceled_meanwhile, stays = (controls.request_checkpoint() for _ in range(3))
    save = step.checkpoints.save

    async def cancel_and_save(*args: Any, **keywords: Any) -> tuple[str, bool]:
        canceled_meanwhile.cancel()
        await asyncio.sleep(0)
        return await save(*args, **keywords)

    step.checkpoints.save = cancel_and_save  # type: ignore[method-assign]
    gone.cancel()
    await asyncio.sleep(0)
    assert await step.wait_while_paused()
    assert await stays == "step-00000004"
    assert len(saved) == 2, f"{len(saved)} checkpoints, of a request that was canceled meanwhile and one that waits"
