"""A learner on a GPU against the same learner on the CPU: every ZeRO stage, offloaded or not."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.learner_ranks import output_of
from tests.support.learner_results import assert_same_gradient, is_measured
from tests.support.processes import run_together
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

STAGES = ("0", "1", "2", "3", "1-offloaded", "2-offloaded", "3-offloaded")
SCRIPT = Path(__file__).parents[1] / "integration" / "learner_ranks.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The results of one rank on the GPU and of one on the CPU."""
    found = {device: tmp_path_factory.mktemp(device) for device in ("gpu", "cpu")}
    for folder in found.values():
        make_tiny_model(folder / "model")
    program = [sys.executable, str(SCRIPT)]
    run_together(
        [
            [*program, str(found["gpu"]), *STAGES],
            ["env", "CUDA_VISIBLE_DEVICES=", *program, str(found["cpu"]), "0"],
        ]
    )
    return found


def result_of(folder: Path, stage: str) -> dict[str, Any]:
    return json.loads((output_of(folder, stage, 1) / "result.json").read_text())


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_on_the_gpu_is_that_of_the_cpu(folders: dict[str, Path], stage: str) -> None:
    found, expected = (output_of(folders[device], at, 1) for device, at in (("gpu", stage), ("cpu", "0")))
    assert_same_gradient(found / "gradient.safetensors", expected / "gradient.safetensors", limit=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_on_the_gpu_reports_the_metrics_of_one_on_the_cpu(folders: dict[str, Path], stage: str) -> None:
    expected, found = (result_of(folders[device], at)["first"] for device, at in (("cpu", "0"), ("gpu", stage)))
    assert found.keys() - {"learner_mfu"} == expected.keys()  # Absent on a CPU and on an unknown GPU.
    for name in filter(is_measured, expected):
        assert found[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-4), name


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_not_finite_changes_nothing_on_the_gpu(folders: dict[str, Path], stage: str) -> None:
    result = result_of(folders["gpu"], stage)
    assert result["refused"][0] is False and not result["refused_changed_weights"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_learner_restored_on_the_gpu_takes_the_same_step(folders: dict[str, Path], stage: str) -> None:
    result = result_of(folders["gpu"], stage)
    assert not result["restored_changed_weights"]
    # Sums on a GPU have no fixed order, so the last digits differ.
    assert result["second_again"]["optim/grad_norm"] == pytest.approx(result["second"]["optim/grad_norm"], rel=1e-3)
