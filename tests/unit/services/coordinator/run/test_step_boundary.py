import asyncio
from types import SimpleNamespace
from typing import Any

from services.coordinator.run.controls import RunControls
from services.coordinator.run.step_boundary import StepBoundary


async def test_a_request_that_is_canceled_costs_no_checkpoint_and_takes_no_other_one_with_it() -> None:
    controls = RunControls()
    gone, canceled_meanwhile, stays = (controls.request_checkpoint() for _ in range(3))
    saved: list[str] = []

    async def cancel_and_save() -> str:
        canceled_meanwhile.cancel()
        await asyncio.sleep(0)
        saved.append("step-00000004")
        return saved[-1]

    learner: Any = SimpleNamespace(is_leaving=False)
    saving: Any = SimpleNamespace(save_now=cancel_and_save, raise_failure=lambda: None)
    gone.cancel()
    await asyncio.sleep(0)
    assert await StepBoundary(controls, learner, saving).wait_while_paused()
    assert await stays == "step-00000004"
    assert len(saved) == 2, f"{len(saved)} checkpoints, of a request that was canceled meanwhile and one that waits"
