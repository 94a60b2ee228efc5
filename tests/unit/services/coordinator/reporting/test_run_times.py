import pytest

from services.coordinator.reporting.run_times import NUM_RECENT_STEPS, EffectiveTime, RemainingTime
from services.coordinator.store.run_record import RunState
from shoal.config.live import LiveConfig
from tests.support.clock import Clock
from tests.support.configs import run_config

QUESTIONS = {"sources": [{"task": "arithmetic"}]}


def remaining_time(num_steps: int, **sections: object) -> RemainingTime:
    return RemainingTime(LiveConfig(run_config(run={"num_steps": num_steps}, **sections)))


def test_the_first_step_counts_by_itself_and_later_ones_with_what_lies_between(clock: Clock) -> None:
    remaining = remaining_time(10)
    clock.now += 60  # Models load, and the first evaluation runs.
    assert remaining.after_step(1, step_s=8.0) == pytest.approx(9 * 8)
    clock.now += 12  # A step of 8 s and a checkpoint.
    assert remaining.after_step(2, step_s=8.0) == pytest.approx(8 * (8 + 12) / 2)
    assert remaining.after_step(10, step_s=8.0) == 0


def test_time_in_pause_does_not_count(clock: Clock) -> None:
    remaining = remaining_time(4)
    remaining.after_step(1, step_s=10.0)
    clock.now += 4
    remaining.paused()
    clock.now += 3600
    remaining.resumed()
    clock.now += 6
    assert remaining.after_step(2, step_s=10.0) == pytest.approx(20)
    clock.now += 10
    remaining.paused()
    clock.now += 500
    # The step that was under way is reported during the pause, which goes on.
    assert remaining.after_step(3, step_s=10.0) == pytest.approx(10)
    clock.now += 500
    remaining.resumed()
    clock.now += 10
    assert remaining.after_step(3, step_s=10.0) == pytest.approx(10)


def test_only_recent_steps_count(clock: Clock) -> None:
    remaining = remaining_time(100)
    remaining.after_step(1, step_s=1000.0)
    for step in range(2, NUM_RECENT_STEPS + 2):
        clock.now += 5
        left = remaining.after_step(step, step_s=5.0)
    assert left == pytest.approx(5 * (100 - NUM_RECENT_STEPS - 1))


def test_the_last_evaluation_is_part_of_what_is_left(clock: Clock) -> None:
    for sections, expected in (({"evaluation": QUESTIONS}, 9 * 8 + 20), ({}, 9 * 8)):
        remaining = remaining_time(10, **sections)
        remaining.evaluated(20.0)
        assert remaining.after_step(1, step_s=8.0) == pytest.approx(expected)


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
