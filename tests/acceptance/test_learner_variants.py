"""Real DeepSpeed on two ranks: sequence parallelism, second copies, decay groups and a reference that follows."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.learner_variants import output_of
from tests.support.learner_results import assert_same_gradient, is_measured
from tests.support.processes import run_together
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(600)

ALONE = ("plain", "sequences", "replay", "few-keys", "following-0", "groups")
TOGETHER = {
    "shared-rows": "plain",
    "shared-rows-checkpointed": "plain",
    "shared-rows-sequences": "sequences",
    "replay-2": "replay",
    "replay-3": "replay",
    "shared-rows-replay": "replay",
    "shared-rows-few-keys": "few-keys",
    "second-copy": "plain",
    "groups": "groups",
    "following-0": "following-0",
    "following-2": "following-0",
    "following-3": "following-0",
    "following-shared-rows": "following-0",
    "following-second-copy": "following-0",
}
"""Variants that two ranks train, each with the variant of one rank that must give the same result."""
FOLLOWING = [variant for variant in TOGETHER if variant.startswith("following")]
SCRIPT = Path(__file__).with_name("learner_variants.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one rank and of two ranks, which have trained every variant side by side."""
    folder = tmp_path_factory.mktemp("variants")
    make_tiny_model(folder / "model")
    make_tiny_model(folder / "model-few-keys", heads=4, key_heads=1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_together([[sys.executable, str(SCRIPT), str(folder), *ALONE], [*torchrun, str(SCRIPT), str(folder), *TOGETHER]])
    return folder


def result_of(folder: Path, variant: str, num_ranks: int) -> dict[str, Any]:
    return json.loads((output_of(folder, variant, num_ranks) / "result.json").read_text())


@pytest.mark.parametrize("variant", TOGETHER)
def test_the_gradient_on_two_ranks_is_that_of_one(folder: Path, variant: str) -> None:
    two, one = output_of(folder, variant, 2), output_of(folder, TOGETHER[variant], 1)
    assert_same_gradient(two / "gradient.safetensors", one / "gradient.safetensors")


@pytest.mark.parametrize("variant", TOGETHER)
def test_steps_on_two_ranks_report_the_metrics_of_steps_on_one(folder: Path, variant: str) -> None:
    one, two = result_of(folder, TOGETHER[variant], 1), result_of(folder, variant, 2)
    for step in ("step-1", "step-2", "step-3-1"):
        assert one[step].keys() == two[step].keys()
        for name in filter(is_measured, one[step]):
            assert two[step][name] == pytest.approx(one[step][name], rel=1e-3, abs=1e-5), f"{step}: {name}"


@pytest.mark.parametrize("variant", TOGETHER)
def test_a_restored_learner_and_its_reference_take_the_same_step_to_the_bit(folder: Path, variant: str) -> None:
    result = result_of(folder, variant, 2)
    assert result["restored"] == result["followed"]
    for name in filter(is_measured, result["step-3-1"]):
        assert result["step-3-2"][name] == result["step-3-1"][name], name


@pytest.mark.parametrize("variant", TOGETHER)
def test_the_reference_moves_and_is_saved_only_when_it_follows_the_policy(folder: Path, variant: str) -> None:
    result = result_of(folder, variant, 2)
    saved = [file for file in result["files"] if file.startswith("reference/")]
    if variant in FOLLOWING:
        assert saved == ["reference/model.safetensors"]
        expected = result_of(folder, TOGETHER[variant], 1)["followed"]
        assert result["followed"] != result["started"]
        assert result["followed"] == pytest.approx(expected, abs=1e-3)
    else:
        assert saved == []
        assert result["followed"] == result["started"]


def test_decay_that_leaves_out_norms_is_another_step(folder: Path) -> None:
    plain, groups = (result_of(folder, variant, 1) for variant in ("plain", "groups"))
    assert plain["policy"] != groups["policy"]
