"""A whole run whose generator gets adapters: real vLLM, real DeepSpeed, real gloo."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_stack import LocalStack, guessing_config, write_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_STEPS = 4


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("adapters")
    config = guessing_config(
        folder,
        run={"num_steps": NUM_STEPS},
        generator={"lora": "adapter"},
        learner={"learning_rate": 1e-2, "lora": {"rank": 4, "alpha": 8}},
    )
    with LocalStack(folder / "runs", "adapters", str(write_config(folder / "run.toml", config))) as stack:
        assert stack.wait(600) == 0, stack.tail()
        yield stack


def test_engine_and_learner_agree_in_every_step(stack: LocalStack) -> None:
    rows = stack.metrics()
    assert [int(row["step"]) for row in rows] == list(range(1, NUM_STEPS + 1))
    gaps = [row["val/logprob_gap_mean"] for row in rows]
    assert max(gaps) < 1e-4, f"mean absolute gap up to {max(gaps)} at staleness 0 in float32"


def test_publishes_carry_adapters_and_prove_them_on_the_generator(stack: LocalStack) -> None:
    publishes = [event["attributes"] for event in stack.of_kind("publish")]
    # Rank 4 on 7 layers in each of 2 blocks, float32.
    num_bytes = 4 * 4 * 2 * (4 * (64 + 64) + 3 * (64 + 128))
    assert {publish["num_bytes"] for publish in publishes} == {num_bytes}
    assert max(publish["canary_gap"] for publish in publishes) < 1e-3, publishes


def test_the_policy_moved(stack: LocalStack) -> None:
    assert all(row["optim/grad_norm"] > 0 for row in stack.metrics())
    assert Path(stack.folder / "model").exists()
