"""A whole run whose generators get adapters: real vLLM, real DeepSpeed, real gloo, and a generator that is killed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_run import call, until_a_new_generator_serves
from tests.support.local_stack import LocalStack, free_port, guessing_config, write_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_STEPS = 6


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A run that has ended. One of its two generators was killed, and another one joined in its place."""
    folder = tmp_path_factory.mktemp("adapters")
    config = guessing_config(
        folder,
        run={"num_steps": NUM_STEPS},
        launch={"num_generators": 2, "coordinator_port": free_port()},
        generator={"lora": "adapter"},
        learner={"learning_rate": 1e-2},
    )
    config["learner.lora"] = {"rank": 4, "alpha": 8}
    stack = LocalStack(
        folder / "runs", "adapters", str(write_config(folder / "run.toml", config)), "--name", "adapters"
    )
    address = f"127.0.0.1:{config['launch']['coordinator_port']}"
    try:
        stack.until_step(1)
        stack.services("generator")[1].send_signal(signal.SIGKILL)
        stack.until_step(3)
        call(address, "PauseRun", {})
        until_a_new_generator_serves(stack)
        call(address, "ResumeRun", {})
        assert stack.wait(300) == 0, stack.tail()
        yield stack
    finally:
        stack.end()


def test_engine_and_learner_agree_in_every_step(stack: LocalStack) -> None:
    rows = stack.metrics()
    assert [int(row["step"]) for row in rows] == list(range(1, NUM_STEPS + 1))
    gaps = [row["val/logprob_gap_mean"] for row in rows]
    assert max(gaps) < 1e-4, f"mean absolute gap up to {max(gaps)} at staleness 0 in float32"


def test_publishes_carry_adapters_and_prove_them_on_every_generator(stack: LocalStack) -> None:
    publishes = [event["attributes"] for event in stack.events() if event["kind"] == "publish"]
    # Rank 4 on 7 layers in each of 2 blocks, float32.
    num_bytes = 4 * 4 * 2 * (4 * (64 + 64) + 3 * (64 + 128))
    assert {publish["num_bytes"] for publish in publishes} == {num_bytes}
    assert max(publish["canary_gap"] for publish in publishes) < 1e-3, publishes
    assert len(publishes[-1]["generators"]) == 2, "the generator that joined late has no adapter"


def test_the_policy_moved(stack: LocalStack) -> None:
    assert all(row["optim/grad_norm"] > 0 for row in stack.metrics())
    assert Path(stack.folder / "model").exists()
