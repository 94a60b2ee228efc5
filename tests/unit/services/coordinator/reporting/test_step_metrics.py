from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.reporting.step_metrics import FinishedStep, StepMetrics, StepTimer, penalized_reward
from services.coordinator.rollout.pause import Pause
from services.coordinator.training.step_plan import plan_step
from services.coordinator.workers.utilization import Utilization
from services.coordinator.workers.weights.publisher import PublishReport
from shoal.config.live import LiveConfig
from shoal.rollout import WeightVersion
from tests.support.clock import Clock
from tests.support.groups import NOW, group_config, judged, settled_group


def test_evaluations_and_pauses_count_for_no_part_of_a_step_and_a_train_step_goes_on_in_one(clock: Clock) -> None:
    pause = Pause()

    def pass_time(running_s: float, *, paused_s: float) -> None:
        clock.now += running_s
        pause.pause()
        clock.now += paused_s
        pause.resume()

    timer = StepTimer(pause.running_s)
    pass_time(5, paused_s=100)
    timer.groups_taken(evaluated_s=2)
    pass_time(4, paused_s=6)
    timer.trained()
    pass_time(20, paused_s=200)
    timer.published()
    pass_time(1, paused_s=50)
    timer.finished()
    assert timer.metrics() == {
        "time/waiting_for_groups": 3,
        "time/training": 10,
        "time/publishing": 20,
        "time/step": 34,
    }


def test_rates_are_since_the_last_step_and_the_learners_is_since_training_began(clock: Clock) -> None:
    generators, rewards = Utilization(clock), Utilization(clock)
    shares: list[float | None] = [0.9, None, 0.25]
    pool: Any = SimpleNamespace(utilization=generators, num_seats=8, take_kv_cache_use=lambda: shares.pop(0))
    config = group_config()
    metrics = StepMetrics(LiveConfig(config), num_prompts=8, generators=pool, rewards=rewards, running_s=clock)
    clock.now += 50  # Models load.
    metrics.begin_training()
    groups = judged(config, [settled_group(0, [1.0, 0.0])])
    rates = []
    for num_tokens in (40, 80):
        timer = StepTimer(clock)
        publish = PublishReport(WeightVersion(0, 1), num_bytes=num_tokens * 100) if rates else None
        generators.out(4)
        clock.now += 2
        generators.back(3)
        clock.now += 2
        generators.back(num_tokens=num_tokens)
        timer.groups_taken(evaluated_s=0)
        plan = plan_step(config, groups, NOW, "step")
        step = FinishedStep(groups, plan, {"val/num_step_tokens": 60.0}, publish, timer, 2, 0)
        rates.append(metrics.of(step))
    assert [values["generator_tokens_per_second_step"] for values in rates] == [10, 20]
    assert [values["learner_tokens_per_second_overall"] for values in rates] == [15, 15]
    assert [values["waiting/learner"] for values in rates] == [1, 1]
    seats = [values["usage/generator_seats"] for values in rates]
    assert seats == [2.5 / 8, 2.5 / 8], "4 completions for half of the time, then 1; none of it counts as idle"
    assert [values["waiting/generators"] for values in rates] == [0, 0]
    assert [values.get("usage/kv_cache") for values in rates] == [None, 0.25], "before training it counts for no step"
    assert [values["time/from_scratch"] for values in rates] == [54, 58]
    assert rates[0]["epoch"] == 1 / 8 and "time/weights_pause" not in rates[0]
    assert "other/published_bytes" not in rates[0] and rates[1]["other/published_bytes"] == 8000


def test_the_kl_divergence_is_subtracted_from_the_reward() -> None:
    in_loss = {"objective/scores": 0.5, "objective/kl": 3.0, "objective/kl_coef": 0.1}
    assert penalized_reward(in_loss) == {
        "objective/non_score_reward": pytest.approx(0.3),
        "objective/rlhf_reward": pytest.approx(0.2),
    }
    in_reward = {
        "objective/scores": 0.5,
        "objective/kl": 3.0,
        "objective/reward_kl": 2.0,
        "objective/reward_kl_coef": 0.1,
    }
    assert penalized_reward(in_reward)["objective/rlhf_reward"] == pytest.approx(0.3)
    assert penalized_reward({"objective/scores": 0.5})["objective/rlhf_reward"] == 0.5
    assert penalized_reward({"objective/kl": 3.0}) == {}
