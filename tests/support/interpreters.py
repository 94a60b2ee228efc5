"""Interpreters with packages that do not share our pins: a test names the package, whoever runs it the interpreter."""

import importlib.util
import os
import sys

import pytest


def interpreter_with(package: str) -> str:
    """Returns the path of a Python that has a package: that of the variable SHOAL_TEST_PYTHON_<PACKAGE>, or this one.
    Skips the test without one."""
    variable = f"SHOAL_TEST_PYTHON_{package.upper()}"
    if path := os.environ.get(variable):
        return path
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed, and {variable} names no Python that has it")
    return sys.executable
