"""What counts as effective: the time of steps that are new, of all the time that a run was active and not paused."""

import pytest

from services.coordinator.reporting.effective_time import EffectiveTime
from services.coordinator.store.run_record import RunState


def test_only_new_steps_count_and_neither_pauses_nor_the_time_before_a_resume() -> None:
    time = EffectiveTime()
    assert time.share == 0
    time.state(RunState.STARTING, 100)
    time.state(RunState.RUNNING, 110)  # 10 s of start-up
    time.step(1, 120)
    time.step(2, 130)
    assert time.share == pytest.approx(20 / 30)
    time.state(RunState.PAUSED, 135)
    time.state(RunState.RUNNING, 1000)
    time.step(3, 1005)
    assert (time.effective_s, time.run_s) == (30, 40)
    time.state(RunState.STARTING, 1020)  # The learner was lost: 15 s, and 20 s until the next attempt trains.
    time.restored(1030)
    time.state(RunState.RUNNING, 1040)
    time.step(2, 1050)  # Again.
    time.step(3, 1060)
    assert (time.effective_s, time.run_s) == (30, 95)
    time.step(4, 1070)
    time.state(RunState.STOPPED, 1075)
    time.state(RunState.STARTING, 5000)  # A person resumes it later.
    assert (time.effective_s, time.run_s) == (40, 110)
