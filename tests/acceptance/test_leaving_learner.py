"""`shoal train` with two real learner ranks that are told to end, and its resume on one rank: no step is lost."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from tests.support.local_stack import STARTING_S, LocalStack, guessing_config, write_config

pytestmark = pytest.mark.timeout(1500)

NUM_STEPS = 9
NUM_STEPS_EXTENDED = 15


@dataclass
class Outcome:
    stack: LocalStack
    num_ranks_at_the_end: int


def rank_0(stack: LocalStack) -> psutil.Process:
    ranks = stack.services("learner")
    (first,) = [rank for rank in ranks if rank.ppid() not in {other.pid for other in ranks}]
    return first


def until_restart(stack: LocalStack, number: int) -> None:
    stack.until(f"restart {number}", lambda _: len(stack.of_kind("restarting")) >= number, STARTING_S)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A run whose learner gets SIGTERM on rank 0, then on rank 1, and that is extended on one rank."""
    folder = tmp_path_factory.mktemp("leaving")
    config = guessing_config(
        folder,
        run={"num_steps": NUM_STEPS},
        launch={"num_learner_ranks": 2},
        checkpoint={"every_steps": 1000},
        grpo={"max_staleness": 1},
    )
    data_dir = folder / "runs"
    with LocalStack(data_dir, "leaving", str(write_config(folder / "run.toml", config))) as stack:
        stack.until_step(2)
        rank_0(stack).send_signal(signal.SIGTERM)
        until_restart(stack, 1)
        stack.until_step(max_step(stack) + 2)
        (follower,) = [child for child in rank_0(stack).children() if "--die-with-parent" in child.cmdline()]
        follower.send_signal(signal.SIGTERM)
        until_restart(stack, 2)
        assert stack.wait(STARTING_S) == 0, stack.tail()
    changes = ("--set", "launch.num_learner_ranks=1", "--set", f"run.num_steps={NUM_STEPS_EXTENDED}")
    with LocalStack(data_dir, "leaving", "--resume", "leaving", *changes) as resumed:
        resumed.until_step(NUM_STEPS + 1, 2 * STARTING_S)
        num_ranks = len(resumed.services("learner"))
        assert resumed.wait(2 * STARTING_S) == 0, resumed.tail()
        yield Outcome(resumed, num_ranks)


def max_step(stack: LocalStack) -> int:
    return max(int(event["attributes"]["step"]) for event in stack.of_kind("step"))


def test_no_step_is_taken_twice(outcome: Outcome) -> None:
    steps = [event["attributes"]["step"] for event in outcome.stack.of_kind("step")]
    assert steps == list(range(1, NUM_STEPS_EXTENDED + 1)), steps


def test_each_restart_says_that_a_checkpoint_has_all_steps(outcome: Outcome) -> None:
    messages = [event["message"] for event in outcome.stack.of_kind("restarting")]
    assert len(messages) == 2, messages
    assert all("step-" in message for message in messages), messages
    assert len(outcome.stack.of_kind("worker_leaving")) == 2


def test_the_run_is_extended_on_another_number_of_ranks(outcome: Outcome) -> None:
    assert outcome.num_ranks_at_the_end == 1
    assert outcome.stack.of_kind("restored")[-1]["attributes"]["policy_version"] == NUM_STEPS
