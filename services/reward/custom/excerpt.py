"""The part of a script that one of its functions needs. Importing the script whole would start its training, or fail
because its trainer is missing."""

import __future__

import ast
import builtins
import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass

_READS = ("LOAD_NAME", "LOAD_GLOBAL")
_WRITES = ("STORE_NAME", "STORE_GLOBAL")


@dataclass(frozen=True)
class _Statement:
    """A statement of the module: its lines, and the module's names that it sets, changes and reads."""

    lines: range
    sets: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    is_always_run: bool
    is_star: bool
    """Whether it imports all names of a module."""


def excerpt(source: str, function: str, path: str) -> str:
    """Returns a script with empty lines instead of the statements that one of its functions does not need.

    Keeps the function, statements that set or change a name that kept statements read, imports from `__future__`, and
    changes of `sys.path`. Raises `SyntaxError` if the script does not parse. Raises `LookupError`, with the names of
    all functions, if no statement sets the function's name.
    """
    tree = ast.parse(source, path)
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    postponed = any(alias.name == "annotations" for node in futures for alias in node.names)
    found = [_read(node, path, postponed) for node in tree.body if not _is_main(node)]
    if not any(function in each.sets for each in found):
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        raise LookupError(", ".join(functions) or "none")
    kept = [each for each in found if each.is_always_run]
    needed = {function}.union(*(each.reads for each in kept))
    while more := [each for each in found if each not in kept and needed & (each.sets | each.changes)]:
        kept += more
        needed = needed.union(*(each.reads for each in more))
    if needed - set(dir(builtins)).union(*(each.sets for each in found)):
        kept += [each for each in found if each.is_star]
    lines = {number for each in kept for number in each.lines}
    return "".join(
        line if number in lines else "\n" for number, line in enumerate(source.splitlines(keepends=True), start=1)
    )


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _read(node: ast.stmt, path: str, postponed: bool) -> _Statement:
    flags = __future__.annotations.compiler_flag if postponed else 0
    code = compile(ast.Module([node], []), path, "exec", flags, dont_inherit=True)
    steps = list(_instructions(code))
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return _Statement(
        range(first, (node.end_lineno or node.lineno) + 1),
        frozenset(step.argval for step in steps if step.opname in _WRITES),
        frozenset(_changed(node)),
        frozenset(step.argval for step in steps if step.opname in _READS),
        is_future or ast.unparse(node).startswith("sys.path."),
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
    )


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Lists the instructions of a code object and of the functions and classes inside it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Lists the names whose value a statement changes in place: `NAMES.add(1)`, `TABLE["a"] = 1`, `tool.limit = 2`."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    for target in targets:
        inner = target
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if inner is not target and isinstance(inner, ast.Name):
            yield inner.id
