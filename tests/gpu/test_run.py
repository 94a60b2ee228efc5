"""Whole runs of `shoal train` on GPUs, with the quickstart's model."""

import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.configs import extended
from tests.support.local_stack import LocalStack, write_config
from tests.support.repository import ROOT

pytestmark = pytest.mark.timeout(1800)

STARTING_S = 600.0
"""Longest time for engine and learner to be up, one after the other: vLLM compiles at its first start."""
NUM_STEPS = 6


def run_config(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the quickstart's configuration for a few steps on a GPU; keyword arguments add to its sections."""
    config: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "configs" / "quickstart.toml").read_text())
    config["run"]["num_steps"] = NUM_STEPS
    config.pop("evaluation", None)
    config["learner"] = {"zero_stage": 0, "learning_rate": 1e-5, "pack_tokens": 2048}
    config["weights"] = {"timeout_s": 120.0}
    return extended(config, sections)


def train(folder: Path, name: str, config: dict[str, dict[str, Any]]) -> LocalStack:
    return LocalStack(folder / "runs", name, str(write_config(folder / "run.toml", config)))


def check(stack: LocalStack, exit_code: int) -> None:
    assert exit_code == 0, stack.tail()
    steps = [event for event in stack.events() if event["kind"] == "step"]
    assert [event["attributes"]["step"] for event in steps] == list(range(1, NUM_STEPS + 1)), stack.tail()
    publishes = [event["attributes"] for event in stack.events() if event["kind"] == "publish"]
    gaps = [publish["canary_gap"] for publish in publishes if publish["generators"]]
    assert len(gaps) >= NUM_STEPS and max(gaps) < 0.2, f"engine and learner differ by {gaps} nats"


def test_generator_and_learner_share_one_gpu_and_a_killed_generator_comes_back_beside_the_warm_learner(
    tmp_path: Path,
) -> None:
    sections = {"gpu_memory_utilization": 0.4, "sleep_while_training": True, "enforce_eager": True}
    with train(tmp_path, "shared", run_config(generator=sections, launch={"single_gpu": True})) as stack:
        stack.until_step(2, STARTING_S)
        joined = [event for event in stack.events() if event["kind"] == "worker_joined"]
        kinds = [event["attributes"]["worker_kind"] for event in joined]
        assert kinds.index("learner") < kinds.index("generator"), kinds
        stack.services("generator")[0].send_signal(signal.SIGKILL)
        check(stack, stack.wait(STARTING_S))
        assert [event for event in stack.events() if event["kind"] == "worker_lost"], "no loss was noticed"


def test_an_engine_with_compilation_and_cuda_graphs_samples_what_the_learner_trains_on(tmp_path: Path) -> None:
    sections = {"gpu_memory_utilization": 0.4, "enforce_eager": False}
    with train(tmp_path, "compiled", run_config(generator=sections, launch={"single_gpu": True})) as stack:
        check(stack, stack.wait(2 * STARTING_S))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL refuses two members on one")
def test_weights_travel_by_nccl_where_learner_and_generator_have_a_gpu_each(tmp_path: Path) -> None:
    with train(
        tmp_path, "apart", run_config(generator={"gpu_memory_utilization": 0.4, "enforce_eager": True})
    ) as stack:
        check(stack, stack.wait(2 * STARTING_S))
