"""The Triton kernels of the output layer, interpreted on a CPU against the plain function, and compiled for GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT

PACKAGES = Path(sys.prefix) / "triton"
"""Where `make install-dev` puts Triton: vLLM's build for CPUs would use it if it were importable."""
LIMITS = {"logprobs": 5e-6, "entropy": 5e-6, "gradient": 1e-6}
BFLOAT16_GRADIENT = 2**-7
"""The largest distance of two neighbors in bfloat16, as a share of the smaller."""


def run_kernels(what: str, **environment: str) -> dict[str, Any]:
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} does not exist: make install-dev puts Triton there")
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{PACKAGES}"} | environment
    command = [sys.executable, "-m", "tests.unit.services.learner.model.triton_kernels", what]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_fused_kernels_compute_what_plain_torch_computes() -> None:
    differences = run_kernels("compare", TRITON_INTERPRET="1")
    assert len(differences) == 5
    for case, found in differences.items():
        for name, difference in found.items():
            limit = BFLOAT16_GRADIENT if name == "gradient" and "bfloat16" in case else LIMITS[name]
            assert difference <= limit, f"{case}: {name} differ by {difference:.2g}, more than {limit:.2g}"


def test_the_kernels_compile_for_the_gpus_that_people_train_on(tmp_path: Path) -> None:
    code = run_kernels("compile", TRITON_CACHE_DIR=str(tmp_path))
    assert len(code) == 3 * 3 * 2, sorted(code)
    assert all(size > 1000 for size in code.values()), code
