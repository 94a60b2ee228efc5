"""The environment `verifiers` without the package; tests/contract/environments/test_verifiers.py has the real one."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from services.reward.environments.builtin.verifiers import Verifiers, _Tasks
from shoal.environment import Broken, InvalidTask


class Taskset(list[str]):
    bounded = True


class Endless:
    bounded = False

    def __init__(self) -> None:
        self.num_read = 0

    def __iter__(self) -> Any:
        for number in itertools.count():
            self.num_read += 1
            yield f"task {number}"


def test_a_row_names_a_task_or_the_seed_draws_one() -> None:
    tasks = _Tasks(Taskset("abc"))
    assert tasks.chosen({"index": 1}, seed=0) == "b"
    assert [tasks.chosen({}, seed=seed) for seed in range(4)] == ["a", "b", "c", "a"]
    with pytest.raises(InvalidTask, match=r"3 tasks.* 3"):
        tasks.chosen({"index": 3}, seed=0)


def test_a_task_set_without_an_end_is_read_as_far_as_it_is_asked_for() -> None:
    endless = Endless()
    tasks = _Tasks(endless)
    assert tasks.chosen({"index": 4}, seed=0) == "task 4" and tasks.chosen({"index": 2}, seed=0) == "task 2"
    assert endless.num_read == 5
    with pytest.raises(InvalidTask, match="infinite"):
        tasks.chosen({}, seed=0)


@pytest.mark.parametrize("task", [{"index": -1}, {"index": True}, {"index": "1"}, {"idx": 1}])
def test_tasks_of_another_form_are_refused(task: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="index"):
        _Tasks(Taskset("abc")).chosen(task, seed=0)


def trace(metrics: dict[str, float | None], trainable: bool = True, **scores: float) -> Any:
    rewards = {name: SimpleNamespace(score=score) for name, score in scores.items()}
    return SimpleNamespace(
        agent=SimpleNamespace(trainable=trainable), errors=[], metrics=metrics, rewards=rewards,
        reward=sum(scores.values()), num_turns=2, stop_condition="agent_completed",
    )  # fmt: skip


def test_rewards_and_metrics_are_those_of_the_agents_that_are_trained() -> None:
    environment = Verifiers()
    traces = [trace({"length": 4.0, "unset": None}, right=1.0, form=0.5), trace({}, trainable=False, right=9.0)]
    assert environment._judged(SimpleNamespace(ok=True, traces=traces, errors=[])) == 1.5
    assert environment.metrics == {"length": 4.0, "right": 1.0, "form": 0.5, "num_turns": 2.0}
    assert environment.detail == "agent_completed"
    two = [trace({}, right=1.0), trace({}, right=0.0)]
    assert Verifiers()._judged(SimpleNamespace(ok=True, traces=two, errors=[])) == 0.5
    assert Verifiers()._judged(SimpleNamespace(ok=True, traces=[trace({})], errors=[])) is None, "nobody scores it"


def test_an_error_of_verifiers_is_a_failure_and_no_reward_of_0() -> None:
    broken = trace({}, right=0.0)
    broken.errors = [SimpleNamespace(type="HarnessError", message="it exited 3")]
    with pytest.raises(Broken, match="HarnessError: it exited 3"):
        Verifiers()._judged(SimpleNamespace(ok=False, traces=[broken], errors=[]))


def test_without_the_package_the_environment_is_unavailable() -> None:
    assert "pip install verifiers" in Verifiers().unavailable()
