"""Reads the settings in a Python file or a notebook: keywords of calls, without running them."""

import ast
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.translate.shared.system import System
from shoal.translate.sources.settings import Settings

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_ENUMS = ("torch", "trl", "transformers")
"""Modules whose members are read as their names."""


@dataclass(frozen=True)
class Unread:
    """A value that only a run of the file could show."""

    text: str


def notebook_code(text: str, path: Path) -> str:
    """Returns the code of a notebook's cells, without the lines for the notebook itself (%, !).

    Raises `InvalidArgument` for a file that is no notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        lines = [line for source in sources for line in "".join(source).splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path} cannot be read as a notebook: {error!r}") from None
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def read_calls(system: System, text: str, path: Path, settings: Settings) -> None:
    """Adds the keywords of the calls that contain the system's settings, without running anything.

    Raises `InvalidArgument` for a file without such a call, or with several calls of one class.
    """
    try:
        tree = ast.parse(text)
        values = _Values(tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} cannot be read as Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [node for node in calls if _called(node.func) in system.calls]
    by_class = [_called(node.func) for node in found]
    if not found:
        raise InvalidArgument(f"{path} contains no call of {' or '.join(system.calls)}")
    if len(by_class) != len(set(by_class)):
        raise InvalidArgument(f"{path} calls {by_class[0]} {len(found)} times; give a file with one call")
    for node in found:
        if any(keyword.arg is None for keyword in node.keywords):
            raise InvalidArgument(f"{path} line {node.lineno}: **settings cannot be read without running the file")
        for keyword in node.keywords:
            _read_keyword(system, keyword, values, settings)
    for node in calls:
        if _called(node.func) in system.calls_beside:
            _read_call_beside(system, node, values, settings)


def _read_keyword(system: System, keyword: ast.keyword, values: "_Values", settings: Settings) -> None:
    """Adds a keyword of a configuration class, or the keywords of the call that it is."""
    name = str(keyword.arg)
    if name in system.parts and (part := values.call(keyword.value)) is not None:
        names = system.parts[name]
        for inner in part.keywords:
            _read_value(system, names.get(str(inner.arg), str(inner.arg)), inner.value, values, settings)
        return
    _read_value(system, name, keyword.value, values, settings)


def _read_call_beside(system: System, node: ast.Call, values: "_Values", settings: Settings) -> None:
    """Adds the keywords of another call that the table has rows for."""
    positional = [
        ast.keyword(name, value) for name, value in zip(system.positional_parameters, node.args, strict=False)
    ]
    for keyword in [*positional, *node.keywords]:
        name = f"{_called(node.func)}.{keyword.arg}"
        if name in system.names or any(name.startswith(known[:-1]) for known in system.families):
            _read_value(system, name, keyword.value, values, settings)


def _read_value(system: System, name: str, node: ast.expr, values: "_Values", settings: Settings) -> None:
    """Adds the value of a field, or the reason why it cannot be read."""
    value = values.function_names(node) if name in system.functions else values.read(node)
    unread = value if isinstance(value, Unread) else None
    if isinstance(value, dict) and name not in system.piecewise:
        unread = next((item for item in value.values() if isinstance(item, Unread)), None)
    if unread is None:
        settings.take({name: value})
        return
    settings.values.pop(name, None)
    settings.unset[name] = f"has no value: line {node.lineno}, {unread.text}, cannot be read without running the file"


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Values(ast.NodeVisitor):
    """Reads expressions, with the values that the file itself assigns."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, ast.expr] = {}
        self._open: set[str] = set()
        """Names whose value is being read."""
        # The module's own names come last: those of a function are local.
        for node in [*ast.walk(tree), *tree.body]:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._assigned |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}

    def read(self, node: ast.expr) -> Any:
        """Returns the value of an expression: `Unread`, or with `Unread` parts, where only a run could show it."""
        try:
            return self.visit(node)
        except RecursionError:
            return Unread("an expression of very many parts")

    def function_names(self, node: ast.expr) -> list[str]:
        """Returns one function, or a list of them, as the file writes them; a factory call stays a call."""
        node = self._follow(node, (ast.List, ast.Tuple))
        items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        assigned = [self._follow(item, (ast.Call, ast.Constant)) for item in items]
        return [str(item.value) if isinstance(item, ast.Constant) else ast.unparse(item) for item in assigned]

    def _follow(self, node: ast.expr, kinds: tuple[type[ast.expr], ...]) -> ast.expr:
        """Returns the expression assigned to a name, if it is of one of these kinds, else the node itself."""
        value = self._assigned.get(node.id) if isinstance(node, ast.Name) else None
        return value if value is not None and isinstance(value, kinds) else node

    def call(self, node: ast.expr) -> ast.Call | None:
        """Returns the call that an expression is, or that a name was assigned; None where it spreads a table."""
        if isinstance(node, ast.Name):
            node = self._assigned.get(node.id, node)
        return node if isinstance(node, ast.Call) and all(keyword.arg for keyword in node.keywords) else None

    def generic_visit(self, node: ast.AST) -> Unread:
        """Returns any other expression unread."""
        return Unread(ast.unparse(node))

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._assigned or node.id in self._open:
            return self.generic_visit(node)
        self._open.add(node.id)
        try:
            value = self.visit(self._assigned[node.id])
        finally:
            self._open.remove(node.id)
        return self.generic_visit(node) if isinstance(value, Unread) else value

    def visit_List(self, node: ast.List | ast.Tuple) -> Any:
        items = [self.visit(item) for item in node.elts]
        return self.generic_visit(node) if any(isinstance(item, Unread) for item in items) else items

    visit_Tuple = visit_List

    def visit_Dict(self, node: ast.Dict) -> Any:
        keys = [None if key is None else self.visit(key) for key in node.keys]
        if any(not isinstance(key, str) for key in keys):
            return self.generic_visit(node)
        return dict(zip(keys, map(self.visit, node.values), strict=True))

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        # A member of an enum, or of a module, is its name: GRPOLossType.dapo, torch.bfloat16.
        owner = _called(node.value)
        return node.attr if owner[:1].isupper() or owner in _ENUMS else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts = []
        for part in node.values:
            value = self.visit(part.value if isinstance(part, ast.FormattedValue) else part)
            if not isinstance(value, str | int | float) or getattr(part, "format_spec", None) is not None:
                return self.generic_visit(node)
            parts.append(str(value))
        return "".join(parts) or self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return not value
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if type(node.op) not in _OPERATORS:
            return self.generic_visit(node)
        left, right = self.visit(node.left), self.visit(node.right)
        try:
            if isinstance(left, int | float) and isinstance(right, int | float):
                return _OPERATORS[type(node.op)](left, right)
        except ZeroDivisionError:
            return self.generic_visit(node)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        name = _called(node.func)
        if name.endswith(("bf16_supported", "bfloat16_supported")):
            # The script asks its machine; machines meant for training support it.
            return True
        if name in ("dict", "SamplingParams") and not node.args and all(keyword.arg for keyword in node.keywords):
            return {str(keyword.arg): self.visit(keyword.value) for keyword in node.keywords}
        return self.generic_visit(node)
