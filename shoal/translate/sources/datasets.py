"""The data of a Python file, found by following the file's functions and names to a call of `load_dataset`."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.translate.sources.values import Unread, Values, called

_KEPT = ("shuffle", "with_format", "set_format", "flatten_indices")
"""Methods that change no row. Shoal draws the order of rows itself."""
_PARAMETERS = ("path", "name", "data_dir", "data_files", "split")
_FILES = ("json", "parquet")
"""File formats that `load_dataset` takes instead of a name, and that this module reads."""
_MAX_DEPTH = 50


@dataclass(frozen=True)
class _Scope:
    """The arguments of a function's parameters, and the caller's scope."""

    given: Mapping[str, ast.expr] = field(default_factory=dict)
    outer: "_Scope | None" = None


class Datasets:
    """Finds the calls that load a file's data sets, without running anything."""

    def __init__(self, tree: ast.Module, values: Values) -> None:
        self._values = values
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        names = [node.name for node in functions]
        self._functions = {node.name: node for node in functions if names.count(node.name) == 1}

    def read(self, node: ast.expr) -> dict[str, Any] | Unread:
        """Returns the data set of an expression, with the keys `dataset`, `dataset_config` and `split`, or `path`. The
        key `changes` lists each change that the file makes to the rows, with its line. Returns `Unread`, with the
        expression at which the search ended, if no call of `load_dataset` gives the data set."""
        found = self._read(node, _Scope(), _MAX_DEPTH)
        if isinstance(found, dict) and isinstance(found.get("path"), dict):
            return Unread(f"{ast.unparse(node)}, which has several splits")
        return found

    def _read(self, node: ast.expr, scope: _Scope, depth: int) -> dict[str, Any] | Unread:
        unread = Unread(ast.unparse(node))
        if depth == 0:
            return unread
        match node:
            case ast.Name() if node.id in scope.given:
                return self._read(scope.given[node.id], scope.outer or _Scope(), depth - 1)
            case ast.Name():
                assigned = self._values.assigned(node)
                return unread if assigned is None else self._read(assigned, scope, depth - 1)
            case ast.Subscript():
                return self._part(node, self._read(node.value, scope, depth - 1), scope)
            case ast.Call(func=func) if called(func) == "load_dataset":
                return self._loaded(node, scope)
            case ast.Call(func=ast.Attribute(value=owner, attr=method)):
                found = self._read(owner, scope, depth - 1)
                return found if method in _KEPT else _changed(found, f"{method} in line {node.end_lineno}")
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                return self._returned(self._functions[name], node, scope, depth)
        return unread

    def _returned(
        self, function: ast.FunctionDef, call: ast.Call, scope: _Scope, depth: int
    ) -> dict[str, Any] | Unread:
        """Follows the one `return` of a function of the file."""
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        defaults = function.args.defaults
        given = dict(zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True))
        given |= dict(zip(parameters, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if len(returns) != 1:
            return Unread(f"{ast.unparse(call)}, which returns in {len(returns)} places")
        return self._read(returns[0], _Scope(given, scope), depth - 1)

    def _part(self, node: ast.Subscript, found: dict[str, Any] | Unread, scope: _Scope) -> dict[str, Any] | Unread:
        split = self._value(node.slice, scope)
        if isinstance(found, Unread):
            return found
        if isinstance(split, str) and isinstance(found.get("path"), dict) and split in found["path"]:
            return {**found, "path": found["path"][split]}
        if isinstance(split, str) and "split" not in found and "path" not in found:
            return {**found, "split": split}
        if split == "train" and isinstance(found.get("path"), str | list):  # Files without a name have only this split.
            return found
        return _changed(found, f"[{ast.unparse(node.slice)}] in line {node.end_lineno}")

    def _loaded(self, node: ast.Call, scope: _Scope) -> dict[str, Any] | Unread:
        words = dict(zip(_PARAMETERS, node.args, strict=False))
        words |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg in _PARAMETERS}
        values = {name: self._value(value, scope) for name, value in words.items()}
        values = {name: value for name, value in values.items() if value is not None}
        if unread := next((each for each in values.values() if isinstance(each, Unread)), None):
            return Unread(f"{ast.unparse(node)}, where {unread.text} has no value")
        files = values.get("data_files")
        if isinstance(files, dict) and "split" in values:
            files = files.get(values["split"])
        if values.get("path") in _FILES and isinstance(files, str | list | dict):
            return {"path": files, "changes": []}
        if not isinstance(values.get("path"), str) or values.keys() & {"data_dir", "data_files"}:
            return Unread(ast.unparse(node))
        names = {"dataset": "path", "dataset_config": "name", "split": "split"}
        return {ours: values[name] for ours, name in names.items() if name in values} | {"changes": []}

    def _value(self, node: ast.expr, scope: _Scope) -> Any:
        if isinstance(node, ast.Name) and node.id in scope.given:
            return self._value(scope.given[node.id], scope.outer or _Scope())
        return self._values.read(node)


def _changed(found: dict[str, Any] | Unread, what: str) -> dict[str, Any] | Unread:
    return found if isinstance(found, Unread) else {**found, "changes": [*found["changes"], what]}
