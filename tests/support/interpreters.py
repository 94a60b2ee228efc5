"""Interpreters with packages that do not share our pins: a test names the package, whoever runs it the interpreter."""

import importlib.util
import os
import sys

import pytest


def find_interpreter(package: str) -> str | None:
    """Returns the path of a Python that has a package: that of `variable_of`, or this one; None without one."""
    if path := os.environ.get(variable_of(package)):
        return path
    return None if importlib.util.find_spec(package) is None else sys.executable


def interpreter_with(package: str) -> str:
    """Returns the path of a Python that has a package. Skips the test without one."""
    path = find_interpreter(package)
    if path is None:
        pytest.skip(f"{package} is not installed, and {variable_of(package)} names no Python that has it")
    return path


def variable_of(package: str) -> str:
    return f"SHOAL_TEST_PYTHON_{package.upper()}"
