"""Programs of the tests that need Triton, in processes of their own."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.repository import ROOT
from tests.support.warm_process import WarmProgram

PACKAGES = Path(sys.prefix) / "triton"
"""Where `make install-dev` puts Triton: vLLM's build for CPUs would use it if it were importable."""


INTERPRETED = "tests.unit.services.learner.model.operation_counts"
"""The program that imports most."""


def _variables() -> dict[str, str]:
    """Returns the environment of a program. Skips the test without Triton."""
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} does not exist: make install-dev puts Triton there")
    return os.environ | {"PYTHONPATH": f"{ROOT}:{PACKAGES}"}


def output_of_compiler(module: str, *arguments: str, **environment: str) -> Any:
    """Runs a module with Triton, and returns the JSON of its last line."""
    command = [sys.executable, "-m", module, *arguments]
    variables = _variables() | environment
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def output_of_interpreter(module: str, *arguments: str) -> Any:
    """Runs `main` of a module with Triton's interpreter, and returns the JSON of its last line."""
    variables = _variables() | {"TRITON_INTERPRET": "1"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        program = WarmProgram(__name__, module, *arguments, environment=variables, output=output, errors=errors)
        exit_code = program.wait()
        for file in (output, errors):
            file.seek(0)
        assert exit_code == 0, errors.read()
        return json.loads(output.read().splitlines()[-1])


def warm() -> None:
    importlib.import_module(INTERPRETED)


@contextmanager
def counted_kernels() -> Iterator[Counter[str]]:
    """Counts the launches of Triton kernels by name instead of running them.

    Call it in a program of `output_of_interpreter`.
    """
    from triton.runtime import interpreter

    launches: Counter[str] = Counter()

    def count(executor: Any, *arguments: Any, **options: Any) -> None:
        launches[executor.fn.__name__] += 1

    with mock.patch.object(interpreter.GridExecutor, "__call__", count):
        yield launches
