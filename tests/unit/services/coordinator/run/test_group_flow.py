from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.run.group_flow import last_order_number
from shoal.config.live import LiveConfig
from shoal.rollout import WeightVersion
from tests.support.groups import group_config

CONFIG = LiveConfig(group_config(run={"num_steps": 5}, grpo={"groups_per_step": 2}))


async def buffer_with(num_issued: int) -> PacingBuffer[JudgedGroup]:
    """A buffer of a run that has trained on groups 0 to 5 and issued the next `num_issued`."""
    buffer: PacingBuffer[JudgedGroup] = PacingBuffer(
        capacity=4, groups_per_step=2, first_order_number=6, last_order_number=lambda _: 99
    )
    for _ in range(num_issued):
        await buffer.admit()
    return buffer


async def test_a_run_needs_the_groups_of_its_remaining_steps() -> None:
    version = CurrentVersion(WeightVersion(0, 3))
    assert last_order_number(CONFIG, RunControls(), version, await buffer_with(0)) == 9, (
        "two steps of two groups after 5"
    )


async def test_a_draining_run_needs_the_window_that_it_has_issued_and_no_more() -> None:
    controls, version = RunControls(), CurrentVersion(WeightVersion(0, 3))
    controls.request_stop(StopMode.DRAIN)
    assert last_order_number(CONFIG, controls, version, await buffer_with(2)) == 7
    assert last_order_number(CONFIG, controls, version, await buffer_with(1)) == -1, "its window cannot be filled"


async def test_a_run_that_stops_now_needs_no_group() -> None:
    controls = RunControls()
    controls.request_stop(StopMode.NOW)
    assert last_order_number(CONFIG, controls, CurrentVersion(WeightVersion(0, 3)), await buffer_with(2)) == -1
