"""Values of expressions in a Python file, as far as its own assignments show them; nothing is run."""

import ast
import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_ENUMS = ("torch", "trl", "transformers")
"""Modules whose members are read as their names."""
_MAX_LOOKED_UP = 100_000
"""The most lookups of names. If each name uses the name before it twice, the work doubles with each line."""
_MAX_CHARS, _MAX_NUMBER = 1 << 20, 1e300
_TEXT_METHODS = ("replace", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
_UNDECIDED = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
"""Statements whose body may run zero times or several times."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Unread:
    """A value that only a run of the file could show."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Statement:
    """A statement, and whether a test or a loop decides if it runs."""

    node: ast.stmt
    is_undecided: bool


def statements(body: list[ast.stmt], *, is_undecided: bool = False) -> Iterator[Statement]:
    """Lists the statements of a scope in order, including statements in its blocks, but not in inner scopes."""
    for node in body:
        yield Statement(node, is_undecided)
        if isinstance(node, _SCOPES):
            continue
        inner = is_undecided or (isinstance(node, _UNDECIDED) and not _is_main(node))
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, []), is_undecided=inner)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(part.body, is_undecided=True)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


@dataclass(frozen=True)
class _Assignment:
    value: ast.expr | None
    """The assigned value; None if the assignment does not show it, such as `+=` or a loop."""
    start: int
    end: int
    is_undecided: bool


class Values(ast.NodeVisitor):
    """Reads expressions, with the values that the file itself assigns."""

    def __init__(self, tree: ast.Module) -> None:
        scopes = [node.body for node in ast.walk(tree) if isinstance(node, _SCOPES) and isinstance(node.body, list)]
        self._functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self._assigned: dict[str, list[_Assignment]] = {}
        # The module's names have precedence over local names of functions.
        for body in [*scopes, tree.body]:
            found: dict[str, list[_Assignment]] = {}
            for statement in statements(body):
                for name, value in _assigned(statement.node):
                    line, end = statement.node.lineno, statement.node.end_lineno or statement.node.lineno
                    found.setdefault(name, []).append(_Assignment(value, line, end, statement.is_undecided))
            self._assigned |= found
        self._open: set[ast.expr] = set()
        """Assigned expressions that are being read."""
        self._num_looked_up = 0

    def read(self, node: ast.expr) -> Any:
        """Returns the value of an expression. The value is or contains `Unread` if only a run could show it."""
        try:
            return self.visit(node)
        except RecursionError:
            return Unread("an expression of very many parts")

    def function_names(self, node: ast.expr) -> list[str]:
        """Returns the names of one or several functions, with the spelling of the file. A factory call stays a call."""
        assigned = [self._follow(item, (ast.Call, ast.Constant)) for item in self.items(node)]
        names = [str(item.value) if isinstance(item, ast.Constant) else ast.unparse(item) for item in assigned]
        # A function of the file may have the name of a known function.
        return [f"{name}, defined in the file" if name in self._functions else name for name in names]

    def items(self, node: ast.expr) -> list[ast.expr]:
        """Returns the expressions of a list, or the expression itself if it is not a list."""
        node = self._follow(node, (ast.List, ast.Tuple))
        return node.elts if isinstance(node, ast.List | ast.Tuple) else [node]

    def call(self, node: ast.expr) -> ast.Call | None:
        """Returns the call that an expression is or names; None if it is no call, or a call with `**table`."""
        node = self._follow(node, (ast.Call,))
        return node if isinstance(node, ast.Call) and all(keyword.arg for keyword in node.keywords) else None

    def depends(self, node: ast.expr, names: Collection[str]) -> bool:
        """Returns whether an expression uses one of the names, directly or through assignments of the file."""
        seen, left = set[ast.expr](), [node]
        while left:
            each = left.pop()
            seen.add(each)
            used = [part for part in ast.walk(each) if isinstance(part, ast.Name)]
            if any(part.id in names for part in used):
                return True
            values = {value for part in used if (value := self.assigned(part)) is not None}
            left += values - seen
        return False

    def _follow(self, node: ast.expr, kinds: tuple[type[ast.expr], ...]) -> ast.expr:
        """Returns the expression assigned to a name if it is of one of these kinds, otherwise the node itself."""
        value = self.assigned(node) if isinstance(node, ast.Name) else None
        return value if value is not None and isinstance(value, kinds) else node

    def assigned(self, node: ast.Name) -> ast.expr | None:
        """Returns the last value assigned to the name before the line; None if the value is not certain."""
        found = self._assigned.get(node.id, [])
        before = [item for item in found if item.end < node.lineno]
        known = before or [item for item in found if item.start > node.lineno]
        is_certain = len(known) == 1 or not any(item.is_undecided for item in known)
        return known[-1].value if known and is_certain else None

    def generic_visit(self, node: ast.AST) -> Unread:
        """Returns `Unread` for an expression that no other method reads."""
        return Unread(ast.unparse(node))

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        assigned = self.assigned(node)
        self._num_looked_up += 1
        if assigned is None or assigned in self._open or self._num_looked_up > _MAX_LOOKED_UP:
            return self.generic_visit(node)
        self._open.add(assigned)
        try:
            value = self.visit(assigned)
        finally:
            self._open.remove(assigned)
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
        owner = called(node.value)
        return node.attr if owner[:1].isupper() or owner in _ENUMS else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts = []
        for part in node.values:
            value = self.visit(part.value if isinstance(part, ast.FormattedValue) else part)
            if not isinstance(value, str | int | float) or getattr(part, "format_spec", None) is not None:
                return self.generic_visit(node)
            parts.append(str(value))
        text = "".join(parts)
        return text if 0 < len(text) <= _MAX_CHARS else self.generic_visit(node)

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
        value: Any = None
        try:
            if isinstance(left, int | float) and isinstance(right, int | float):
                value = _OPERATORS[type(node.op)](left, right)
        except ArithmeticError:  # A division by zero, or a number too large for a float.
            return self.generic_visit(node)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            value = left + right
        is_large = len(value) > _MAX_CHARS if isinstance(value, str) else abs(value or 0) > _MAX_NUMBER
        return self.generic_visit(node) if value is None or is_large else value

    def visit_Call(self, node: ast.Call) -> Any:
        name = called(node.func)
        if name.endswith(("bf16_supported", "bfloat16_supported")):
            # The script queries its machine. Machines for training support it.
            return True
        if name in ("dict", "SamplingParams") and not node.args and all(keyword.arg for keyword in node.keywords):
            return {str(keyword.arg): self.visit(keyword.value) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute) and name in _TEXT_METHODS and not node.keywords:
            text, arguments = self.visit(node.func.value), [self.visit(argument) for argument in node.args]
            if isinstance(text, str) and all(isinstance(argument, str) for argument in arguments):
                with suppress(TypeError):  # Too many arguments, or too few.
                    value = getattr(text, name)(*arguments)
                    return value if len(value) <= _MAX_CHARS else self.generic_visit(node)
        return self.generic_visit(node)


def called(node: ast.AST) -> str:
    """Returns the last part of a dotted name; empty for an expression that is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Lists the names that a statement assigns, each with its value, or None if the statement does not show it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
        yield from _targets(node.target, None)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _targets(item.optional_vars, None)


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts):
            parts = list(value.elts)
        for inner, part in zip(target.elts, parts, strict=True):
            yield from _targets(inner, part)
