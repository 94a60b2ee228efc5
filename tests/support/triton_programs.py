"""Programs of the tests that need Triton, in processes of their own."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

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


@contextmanager
def counted_kernels() -> Iterator[Counter[str]]:
    """Counts the launches of Triton kernels by name instead of running them.

    Call it in a program of `output_with_triton` with TRITON_INTERPRET=1.
    """
    from triton.runtime import interpreter

    launches: Counter[str] = Counter()

    def count(executor: Any, *arguments: Any, **options: Any) -> None:
        launches[executor.fn.__name__] += 1

    with mock.patch.object(interpreter.GridExecutor, "__call__", count):
        yield launches
