"""Programs of the tests that need Triton, in processes of their own."""

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


def output_with_triton(module: str, *arguments: str, **environment: str) -> Any:
    """Runs a module with Triton, and returns the JSON of its last line. Skips the test without Triton."""
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} does not exist: make install-dev puts Triton there")
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{PACKAGES}"} | environment
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
