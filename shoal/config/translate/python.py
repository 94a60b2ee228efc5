"""The settings in a Python file or a notebook: keywords of calls, read and not run."""

import ast
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.translate.given import Given
from shoal.config.translate.system import System
from shoal.errors import InvalidArgument

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_ENUMS = ("torch", "trl", "transformers")
"""Modules whose members are read by their names."""


@dataclass(frozen=True)
class Unread:
    """A value that only running the file would tell."""

    text: str


def notebook_code(text: str, path: Path) -> str:
    """The code of a notebook's cells, without lines for the notebook itself (%, !).

    Raises `InvalidArgument` for what is no notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        lines = [line for source in sources for line in "".join(source).splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path} cannot be read as a notebook: {error!r}") from None
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def read_calls(system: System, text: str, path: Path, given: Given) -> None:
    """Adds the keywords of the calls that hold the system's settings; nothing is run.

    Raises `InvalidArgument` for a file without such a call, or with several of one.
    """
    try:
        tree = ast.parse(text)
        reader = _Values(tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} cannot be read as Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [node for node in calls if _called(node.func) in system.calls]
    by_class = [_called(node.func) for node in found]
    if not found:
        raise InvalidArgument(f"{path} calls none of {', '.join(system.calls)}")
    if len(by_class) != len(set(by_class)):
        raise InvalidArgument(f"{path} calls {by_class[0]} {len(found)} times; give a file with one call")
    for node in found:
        for keyword in node.keywords:
            if keyword.arg is None:
                raise InvalidArgument(f"{path} line {node.lineno}: **settings cannot be read without running them")
            if keyword.arg in system.parts and (part := reader.call(keyword.value)) is not None:
                for inner in part.keywords:
                    name = system.parts[keyword.arg].get(str(inner.arg), str(inner.arg))
                    _take(system, name, reader.read(inner.value), inner.value.lineno, given)
                continue
            read = reader.words if keyword.arg in system.functions else reader.read
            _take(system, keyword.arg, read(keyword.value), keyword.value.lineno, given)
    for node in calls:
        if _called(node.func) in system.calls_beside:
            placed = [ast.keyword(name, value) for name, value in zip(system.places, node.args, strict=False)]
            for keyword in [*placed, *node.keywords]:
                name = f"{_called(node.func)}.{keyword.arg}"
                if name in system.names or any(name.startswith(known[:-1]) for known in system.families):
                    read = reader.words if name in system.functions else reader.read
                    _take(system, name, read(keyword.value), keyword.value.lineno, given)


def _take(system: System, name: str, value: Any, line: int, given: Given) -> None:
    unread = value if isinstance(value, Unread) else None
    if isinstance(value, dict) and name not in system.piecewise:
        unread = next((item for item in value.values() if isinstance(item, Unread)), None)
    if unread is not None:
        given.values.pop(name, None)
        given.unset[name] = f"has no value: line {line}, {unread.text}, cannot be read without running the file"
    else:
        given.take({name: value})


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Values:
    """Reads expressions with what the file's own assignments say."""

    def __init__(self, tree: ast.Module) -> None:
        self._constants: dict[str, ast.expr] = {}
        # The module's own come last: a function's names are its own.
        for node in [*ast.walk(tree), *tree.body]:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                    self._constants[target.id] = node.value

    def read(self, node: ast.expr) -> Any:
        """The value of an expression; `Unread`, or with one inside, where only running would tell."""
        try:
            return self._read(node, frozenset())
        except RecursionError:
            return Unread("an expression of very many parts")

    def words(self, node: ast.expr) -> list[str]:
        """Functions, one or a list of them, in the file's words; one that a call makes with that call."""
        node = self._assigned(node, (ast.List, ast.Tuple))
        items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        assigned = [self._assigned(item, (ast.Call, ast.Constant)) for item in items]
        return [str(item.value) if isinstance(item, ast.Constant) else ast.unparse(item) for item in assigned]

    def _assigned(self, node: ast.expr, kinds: tuple[type[ast.expr], ...]) -> ast.expr:
        """What was assigned to a name, if it is of one of the kinds."""
        value = self._constants.get(node.id) if isinstance(node, ast.Name) else None
        return value if value is not None and isinstance(value, kinds) else node

    def call(self, node: ast.expr) -> ast.Call | None:
        """The call that an expression is, or that a name was assigned; None where it spreads a table."""
        if isinstance(node, ast.Name):
            node = self._constants.get(node.id, node)
        return node if isinstance(node, ast.Call) and all(keyword.arg for keyword in node.keywords) else None

    def _read(self, node: ast.expr, seen: frozenset[str]) -> Any:
        unread = Unread(ast.unparse(node))
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self._constants and node.id not in seen:
                value = self._read(self._constants[node.id], seen | {node.id})
                return unread if isinstance(value, Unread) else value
            return unread
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._read(item, seen) for item in node.elts]
            return unread if any(isinstance(item, Unread) for item in items) else items
        if isinstance(node, ast.Dict):
            keys = [self._read(key, seen) if key is not None else unread for key in node.keys]
            if any(not isinstance(key, str) for key in keys):
                return unread
            return dict(zip(keys, (self._read(value, seen) for value in node.values), strict=True))
        if isinstance(node, ast.Attribute):
            # A member of an enum, or of a module, is its name: GRPOLossType.dapo, torch.bfloat16.
            owner = _called(node.value)
            return node.attr if owner[:1].isupper() or owner in _ENUMS else unread
        if isinstance(node, ast.JoinedStr):
            return self._text(node, seen) or unread
        if isinstance(node, ast.UnaryOp):
            value = self._read(node.operand, seen)
            if isinstance(node.op, ast.USub) and isinstance(value, int | float):
                return -value
            return not value if isinstance(node.op, ast.Not) and isinstance(value, bool) else unread
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self._computed(node, seen, unread)
        if isinstance(node, ast.Call):
            return self._call(node, seen, unread)
        return unread

    def _text(self, node: ast.JoinedStr, seen: frozenset[str]) -> str | None:
        parts = []
        for part in node.values:
            value = self._read(part.value if isinstance(part, ast.FormattedValue) else part, seen)
            if not isinstance(value, str | int | float) or getattr(part, "format_spec", None) is not None:
                return None
            parts.append(str(value))
        return "".join(parts)

    def _computed(self, node: ast.BinOp, seen: frozenset[str], unread: Unread) -> Any:
        left, right = self._read(node.left, seen), self._read(node.right, seen)
        try:
            if isinstance(left, int | float) and isinstance(right, int | float):
                return _OPERATORS[type(node.op)](left, right)
        except ZeroDivisionError:
            return unread
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
        return unread

    def _call(self, node: ast.Call, seen: frozenset[str], unread: Unread) -> Any:
        name = _called(node.func)
        if name.endswith(("bf16_supported", "bfloat16_supported")):
            # Asked of a machine: those that training is for have it.
            return True
        if name in ("dict", "SamplingParams") and not node.args and all(keyword.arg for keyword in node.keywords):
            return {str(keyword.arg): self._read(keyword.value, seen) for keyword in node.keywords}
        return unread
