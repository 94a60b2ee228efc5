"""Finds the functions of a Python file that a setting names, so that a reward service can load them."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shoal.parsing import parse_python
from shoal.translate.shared.draft import OwnFunction
from shoal.translate.sources.values import called, statements

_ITS_OBJECTS = ("trainer_state", "environments")
"""Parameters of a reward function to which only TRL's trainer can pass values."""
_NO_COLUMNS = ("prompts", "completions", "completion_ids", "log_metric", "log_extra", *_ITS_OBJECTS)
_MAX_FILES = 5
"""The most files that are followed from import to import. Two files may import from each other."""
_MAKERS = ("partial", "functools.partial")


def own_function(tree: ast.Module, name: str, path: Path) -> OwnFunction | None:
    """Returns a function that the file at `path` defines, or imports from a neighboring file; else None."""
    found = _own(tree, name, path)
    if found is None or found.problem or Path(found.file).suffix == ".py":
        return found
    return replace(found, problem=f"is defined in {Path(found.file).name}: move it to a .py file")


def _own(tree: ast.Module, name: str, path: Path, num_files: int = 1) -> OwnFunction | None:
    for statement in statements(tree.body):
        node = statement.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return _described(tree, node, name, path)
        if isinstance(node, ast.Assign) and _makes_function(tree, node, name):
            return OwnFunction(name, str(path.absolute()), (), takes_messages=_reads_contents(tree, node))
        if isinstance(node, ast.ImportFrom) and (alias := _imported(node, name)) is not None:
            beside = path.parent.joinpath(*"." * max(0, node.level - 1), *(node.module or "").split("."))
            file = beside.with_suffix(".py")
            is_near = node.module and num_files < _MAX_FILES and file.is_file()
            return _own_of_file(file, alias, num_files + 1) if is_near else None
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(node.name == name for node in inner):
        problem = "is defined inside another function: move it to the top level"
        return OwnFunction(name, str(path.absolute()), (), problem=problem)
    return None


def _own_of_file(file: Path, name: str, num_files: int) -> OwnFunction | None:
    try:
        tree = parse_python(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _own(tree, name, file, num_files)


def _imported(node: ast.ImportFrom, name: str) -> str | None:
    return next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)


def _makes_function(tree: ast.Module, node: ast.Assign, name: str) -> bool:
    """Returns whether an assignment names a lambda, or the result of `partial` or of a function of the file."""
    if not any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
        return False
    own = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    if isinstance(node.value, ast.Call):
        return called(node.value.func) in own or ast.unparse(node.value.func) in _MAKERS
    return isinstance(node.value, ast.Lambda)


def _described(tree: ast.Module, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, path: Path) -> OwnFunction:
    positional, by_name = node.args.args, zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    first_default = len(positional) - len(node.args.defaults)
    parameters = {each.arg: index >= first_default for index, each in enumerate(positional)}
    parameters |= {each.arg: default is not None for each, default in by_name}
    required = [each for each, has_default in parameters.items() if not has_default and each not in _NO_COLUMNS]
    theirs = [each for each, has_default in parameters.items() if not has_default and each in _ITS_OBJECTS]
    return OwnFunction(
        name,
        str(path.absolute()),
        tuple(dict.fromkeys([*required, *(each for each in _read_from(node) if each not in _NO_COLUMNS)])),
        required=tuple(required),
        optional=tuple(each for each in parameters if each not in (*required, *_NO_COLUMNS)),
        takes_messages=_reads_contents(tree, node),
        problem=f"needs {theirs[0]}, which only TRL's trainer has: remove the parameter" if theirs else "",
    )


def _read_from(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Lists the columns that a function reads from its `**kwargs`, by `kwargs["a"]` or `kwargs.get("a")`."""
    words = node.args.kwarg.arg if node.args.kwarg else None
    for part in ast.walk(node):
        key: ast.expr | None = None
        if isinstance(part, ast.Subscript) and called(part.value) == words:
            key = part.slice
        elif isinstance(part, ast.Call) and ast.unparse(part.func) in (f"{words}.get", f"{words}.pop") and part.args:
            key = part.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def _reads_contents(tree: ast.Module, node: ast.stmt) -> bool:
    """Returns whether a function, or one that it names, reads `["content"]`, as for messages."""
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    seen, left = set[str](), [node]
    while left:
        parts = list(ast.walk(left.pop()))
        if any(isinstance(part, ast.Constant) and part.value == "content" for part in parts):
            return True
        names = {part.id for part in parts if isinstance(part, ast.Name)} & functions.keys() - seen
        seen |= names
        left += [functions[name] for name in names]
    return False
