"""The compose stack, built and run: any start order, learning, deaths, and the end."""

import os
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.e2e.compose_stack import ComposeStack, wait_until, why_not
from tests.support.local_stack import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]

WORKERS = ["GENERATOR", "LEARNER", "REWARD"]
RUN = "learns"
STOPPED_RUN = "stopped"


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    stack = ComposeStack(f"shoal-e2e-{os.getpid()}", free_port())
    stack.run("build")
    try:
        yield stack
    finally:
        stack.remove()


def test_workers_find_a_coordinator_that_comes_after_them_and_one_that_comes_again(stack: ComposeStack) -> None:
    stack.run("up", "-d", "generator", "learner", "reward")
    stack.run("up", "-d", "coordinator")
    later = wait_until(lambda: stack.workers() == WORKERS, "all workers are registered")
    stack.run("restart", "coordinator")
    again = wait_until(lambda: stack.workers() == WORKERS, "all workers are registered again")
    print(f"\nregistered {later:.0f} s after the coordinator came, {again:.0f} s after it came again")


def test_reward_rises_and_a_generator_that_is_killed_costs_no_step(stack: ComposeStack) -> None:
    began = time.monotonic()
    stack.run("run", "-d", "train", "/configs/quickstart.toml", "--name", RUN, "--set", "weights.store_port=50052")
    wait_until(lambda: stack.steps(RUN) >= 4, "four steps are taken", at_most_s=900)
    # The process that init started in the container, as a crash would end it.
    stack.run("exec", "-T", "generator", "sh", "-c", "kill -9 -1", check=False)
    wait_until(lambda: stack.shoal("run", "status", RUN)["state"] == "RUN_STATE_FINISHED", "the run ends", 2400)

    events = stack.events(RUN)
    rates = [
        event["attributes"]["metrics"]["objective/verifiable_correct_rate"]
        for event in events
        if event["kind"] == "step"
    ]
    last = statistics.fmean(rates[-5:])
    held_out = [event["attributes"]["correct_rate"] for event in events if event["kind"] == "evaluation"]
    print(f"\n{len(rates)} steps in {time.monotonic() - began:.0f} s, one generator killed meanwhile;")
    print(f"correct {rates[0]:.3f} -> {last:.3f}, held out {held_out}")
    assert len(rates) == 20
    assert last >= 0.5, rates
    assert held_out[-1] - held_out[0] >= 0.2, held_out
    lost = [event for event in events if event["kind"] == "worker_lost"]
    assert [event["attributes"]["worker_kind"] for event in lost] == ["generator"], lost
    joined = [event["attributes"]["worker_kind"] for event in events if event["kind"] == "worker_joined"]
    assert joined.count("generator") == 2, joined


def test_stopping_writes_a_checkpoint_and_kills_nothing_and_the_run_goes_on_from_it(stack: ComposeStack) -> None:
    stack.run(
        *("run", "-d", "train", "/configs/quickstart.toml", "--name", STOPPED_RUN, "--set", "weights.store_port=50052"),
        *("--set", "run.num_steps=5", "--set", "evaluation.num_prompts=8"),
    )
    wait_until(lambda: stack.steps(STOPPED_RUN) >= 1, "a step is taken", at_most_s=900)
    began = time.monotonic()
    stack.run("stop")
    print(f"\nstopped within {time.monotonic() - began:.0f} s")
    # 137 would be a process that did not end in its time.
    assert set(stack.exit_codes().values()) <= {0, 143}, stack.exit_codes()
    assert stack.exit_codes()["coordinator"] == 0, stack.exit_codes()

    stack.run("up", "-d", "coordinator")
    wait_until(lambda: stack.workers() == WORKERS, "all workers are registered")
    wait_until(
        lambda: stack.shoal("run", "status", STOPPED_RUN)["state"] == "RUN_STATE_FINISHED",
        "the coordinator goes on with the run that its end interrupted",
        at_most_s=900,
    )
    run = stack.shoal("run", "status", STOPPED_RUN)
    assert (run["policy_version"], run["attempt"]) == (5, 1), run
