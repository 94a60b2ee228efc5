"""Signatures of libraries, read from their installed sources without importing them.

The code for GPUs of vLLM and torch is installed also where there is no GPU. So a test on a CPU can hold a call to the
signature that it will meet.
"""

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest


def source_of(package: str, file: str) -> ast.Module:
    """Parses a file of an installed package. Skips the test if the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(spec.origin).parent / file).read_text())


def class_of(module: ast.Module, name: str) -> ast.ClassDef:
    """Returns a class of a module, also one inside another class."""
    return next(node for node in ast.walk(module) if isinstance(node, ast.ClassDef) and node.name == name)


def fields_of(cls: ast.ClassDef) -> set[str]:
    return {
        node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def signature_of(cls: ast.ClassDef, method: str) -> inspect.Signature:
    """Returns the signature of a method, without `self`. Defaults are not evaluated."""
    function = next(
        node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method
    )
    kinds = inspect.Parameter
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    parameters = [
        kinds(argument.arg, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if index < required else ...)
        for index, argument in enumerate(positional)
    ][1:]
    parameters += [
        kinds(argument.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else ...)
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return inspect.Signature(parameters)
