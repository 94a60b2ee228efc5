"""The environment `reasoning_gym`."""

import importlib.util
from typing import Any

import pytest

from services.reward.environments.builtin.reasoning_gym import ReasoningGym
from shoal.config.tables.data import SourceConfig
from shoal.data.tasks import make_task
from shoal.environment import Observation, Turn, Unscorable
from shoal.reasoning_entry import entry_from_text

needs_package = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
SOURCE = SourceConfig(
    task="chain_sum", task_size=3, environment="reasoning_gym", environment_task_column="ground_truth"
)


def begun(**settings: Any) -> tuple[ReasoningGym, str]:
    values = make_task(SOURCE).rows[1].values
    assert "dataset" not in values, "with a verifier as well, the same answer would be paid twice"
    environment = ReasoningGym(**settings)
    environment.reset(values["ground_truth"], 0)
    return environment, entry_from_text(values["ground_truth"]["entry"])["answer"]


@needs_package
def test_a_right_answer_is_paid_less_for_every_try_before_it() -> None:
    for num_wrong, reward in ((0, 1.0), (1, 0.5), (2, 0.25)):
        environment, answer = begun(discount=0.5, wrong="No.")
        for number in range(1, num_wrong + 1):
            assert environment.step(Turn(number, "<answer>no idea</answer>")) == Observation("No.")
        last = environment.step(Turn(num_wrong + 1, f"It is <answer>{answer}</answer>."))
        assert last == Observation(reward=reward, done=True)
        assert environment.metrics == {"tries": num_wrong + 1, "solved": 1, "first_try": num_wrong == 0}


@needs_package
def test_the_last_wrong_try_ends_the_episode_with_its_score() -> None:
    environment, _ = begun(max_tries=2)
    assert not environment.step(Turn(1, "7")).done
    last = environment.step(Turn(2, "no idea"))
    assert last.done and 0 <= (last.reward or 0.0) < 0.1 and environment.metrics["solved"] == 0


@needs_package
def test_a_task_without_a_scorer_is_unscorable() -> None:
    environment = ReasoningGym()
    environment.reset({"task": "no_such_task", "options": "{}", "entry": "{}"}, 0)
    with pytest.raises(Unscorable, match="no task 'no_such_task'"):
        environment.step(Turn(1, "x"))
