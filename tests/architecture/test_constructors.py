"""A constructor takes few things: what belongs together comes as one."""

import ast
from functools import cache

from tests.architecture.test_limits import modules

MAX_PARAMETERS = 8
WIDE = {
    "services/reward/environments/builtin/openenv.py:OpenEnv": "its parameters are the settings of an environment",
    "services/reward/common/verifier.py:Verifier": "the declaration of a verifier, made by keywords alone",
    "services/reward/pool/pool.py:Seat": "made from a process and its output; the rest is what becomes of it",
    "shoal/translate/shared/system.py:System": "the declaration of a system, made by keywords alone",
}
"""Constructors with more, and why."""


def test_a_constructor_has_at_most_eight_parameters() -> None:
    wide = {
        f"{path}:{node.name}": count
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (count := _num_parameters(node)) > MAX_PARAMETERS
    }
    unknown = {name: count for name, count in wide.items() if name not in WIDE}
    assert not unknown, f"bundle what belongs together, at most {MAX_PARAMETERS} parameters each: {unknown}"


def _num_parameters(node: ast.ClassDef) -> int:
    """Counts the parameters of a class's constructor; 0 for a data class whose fields are values alone."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return len(method.args.posonlyargs + method.args.args + method.args.kwonlyargs) - 1
    if not _is_data_class(node):
        return 0
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and "init=False" not in ast.unparse(item)]
    names = {name.id for item in fields for name in ast.walk(item.annotation) if isinstance(name, ast.Name)}
    return len(fields) if names & _classes_that_act() else 0


def _is_data_class(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


@cache
def _classes_that_act() -> frozenset[str]:
    """Returns the names of classes that have methods and are no data classes."""
    return frozenset(
        node.name
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not _is_data_class(node)
        and any(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and _acts(item) for item in node.body)
    )


def _acts(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not method.name.startswith("__") and not method.decorator_list
