"""Files and functions stay small, folders hold three modules or more, and import no other in a circle."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT

MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MIN_FOLDER_MODULES = 3

GENERATED = ("shoal/v1",)
TABLES = ("shoal/translate/open_instruct/fields.py",)
"""Modules that are one long table."""


@cache
def modules() -> dict[str, ast.Module]:
    """Returns the parsed modules of services/ and shoal/, without generated ones, by their path."""
    paths = (path.relative_to(ROOT) for top in ("services", "shoal") for path in (ROOT / top).rglob("*.py"))
    return {
        str(path): ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for path in sorted(paths)
        if not str(path).startswith(GENERATED)
    }


def test_no_file_is_longer_than_a_few_screens() -> None:
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    long = {path: length for path, length in lengths.items() if length > MAX_FILE_LINES and path not in TABLES}
    assert not long, f"split these files, at most {MAX_FILE_LINES} lines each: {long}"
    assert all(lengths[path] > MAX_FILE_LINES for path in TABLES), "take a table that became short out of TABLES"


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}: {length} lines"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long, f"split these functions, at most {MAX_FUNCTION_LINES} lines each: {long}"


def test_plain_numbers_stand_above_all_functions_and_classes() -> None:
    late = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in modules().items()
        for index, node in enumerate(tree.body)
        if isinstance(node, ast.Assign) and not set(map(type, ast.walk(node.value))) & {ast.Name, ast.Call}
        if isinstance(node.value, ast.Constant | ast.BinOp) and not isinstance(_first(node.value), str)
        if any(isinstance(before, ast.FunctionDef | ast.ClassDef) for before in tree.body[:index])
    ]
    assert not late, f"move these numbers to the top of their file: {late}"


def _first(value: ast.expr) -> object:
    return next((node.value for node in ast.walk(value) if isinstance(node, ast.Constant)), None)


def test_no_folder_holds_fewer_than_three_modules() -> None:
    held: dict[str, int] = defaultdict(int)
    for path in modules():
        held[str(Path(path).parent)] += not path.endswith("/__init__.py")
    small = {folder: count for folder, count in held.items() if 0 < count < MIN_FOLDER_MODULES}
    assert not small, f"move the modules of these folders one folder up, or to their users: {small}"


def test_no_folders_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules().items():
        folder = str(Path(path).parent)
        edges[folder] |= {target for target in _imported_folders(tree) if target != folder}
    circles = [sorted(circle) for circle in _circles(edges)]
    assert not circles, f"these folders import each other; a folder and its parent count as two: {circles}"


def _imported_folders(tree: ast.Module) -> Iterator[str]:
    """Yields the folder of each module that a module imports; a package is its own folder."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _folder(name) is not None else node.module for name in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (folder for name in names if (folder := _folder(name)) is not None)


def _folder(module: str) -> str | None:
    path = module.replace(".", "/")
    if f"{path}/__init__.py" in modules():
        return path
    return str(Path(path).parent) if f"{path}.py" in modules() else None


def _circles(edges: dict[str, set[str]]) -> list[set[str]]:
    reached = {folder: _reachable(folder, edges) for folder in list(edges)}
    circles: list[set[str]] = []
    for folder, targets in reached.items():
        if folder in targets and not any(folder in circle for circle in circles):
            circles.append({other for other in targets if folder in reached.get(other, ())})
    return circles


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        folder = waiting.pop()
        if folder not in found:
            found.add(folder)
            waiting += edges.get(folder, ())
    return found


def test_a_circle_of_folders_is_found() -> None:
    edges = {"a": {"a/b"}, "a/b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert _circles(edges) == [{"a", "a/b", "c"}]
