"""The memory that `shoal config suggest` expects of a learner is the memory that the published runs took on an H200."""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.learner import SHAPES
from shoal.suggest.memory import GIB, learner_memory
from shoal.suggest.rows import fit_rows
from shoal.suggest.shape import ModelShape, model_shape
from tests.support.configs import run_config
from tests.support.repository import ROOT

RESULTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "benchmarks" / "results").glob("gpu_*.json"))
}
ALONE = [name for name, result in RESULTS.items() if set(result["contestants"]) == {"learner"}]
"""Runs without a second model in the GPU's memory."""
H200 = 139 * GIB


def run_of(name: str, folder: Path) -> tuple[Any, ModelShape]:
    """Returns the configuration of a measured run and the shape of its model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape")
    parser.add_argument("--set", action="append", default=[])
    for option in ("--layers", "--group-size", "--prompt-tokens", "--completion-tokens"):
        parser.add_argument(option, type=int)
    options, _ = parser.parse_known_args(shlex.split(RESULTS[name]["run"]["arguments"]))
    sizes = SHAPES[options.shape].to_dict()
    sizes |= {"num_hidden_layers": options.layers} if options.layers else {}
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    shape = model_shape(str(folder))
    learner = {field: json.loads(value) for field, value in (item.split("=", 1) for item in options.set)}
    config = run_config(
        str(folder),
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": options.prompt_tokens},
        sampling={"max_completion_tokens": options.completion_tokens},
        grpo={"group_size": max(2, options.group_size)},
        learner={"compute_dtype": "bfloat16"} | learner,
    )
    rows = fit_rows(config, shape, gpu_bytes=H200)
    assert rows.fits
    return config.model_copy(update={"learner": rows.learner}), shape


@pytest.mark.parametrize("name", ALONE)
def test_a_learner_took_the_memory_that_is_expected_of_it(tmp_path: Path, name: str) -> None:
    config, shape = run_of(name, tmp_path)
    expected = learner_memory(config, shape)
    ratio = RESULTS[name]["contestants"]["learner"]["peak_bytes"] / expected.total
    parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in expected.parts.items())
    assert 0.93 <= ratio <= 1.06, f"{ratio:.3f} of the {expected.total / GIB:.2f} GiB that were expected: {parts}"


def test_at_stage_0_the_expected_memory_is_right_within_3_percent(tmp_path: Path) -> None:
    ratios = {}
    for name in ALONE:
        config, shape = run_of(name, tmp_path)
        if config.learner.stage_on(1) == 0:
            ratios[name] = RESULTS[name]["contestants"]["learner"]["peak_bytes"] / learner_memory(config, shape).total
    assert len(ratios) >= 5 and all(0.97 <= ratio <= 1.03 for ratio in ratios.values()), ratios
