"""Shell expansions that need no shell."""

import ast
import operator
import os
import re
from collections.abc import Callable, Mapping

from shoal.parsing import parse_python

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

_MAX_CUT_CHARS, _MAX_STARS = 4096, 2
_MAX_NUMBER = 2**63


def cut(value: str, rest: str) -> str | None:
    """Returns the value of `${NAME<rest>}`: a prefix (#, ##) or suffix (%, %%) removed, or a match replaced (/, //).

    Returns None for any other `rest`, for a variable in it, and for values and patterns that take too long to match.
    """
    match = re.match(r"##|#|%%|%|//|/", rest)
    if match is None or "$" in rest or len(value) > _MAX_CUT_CHARS or rest.count("*") > _MAX_STARS:
        return None
    how, pattern = match[0], rest[match.end() :]
    if how in ("/", "//"):
        pattern, _, new = pattern.partition("/")
        return re.sub(_expression(pattern, is_longest=True), lambda _: new, value, count=0 if how == "//" else 1)
    if how[0] == "#":
        return re.sub(rf"\A{_expression(pattern, is_longest=len(how) == 2)}", "", value, count=1)
    # The match that begins last is the shortest suffix.
    starts = [at for at in range(len(value) + 1) if re.fullmatch(_expression(pattern, is_longest=True), value[at:])]
    if not starts:
        return value
    return value[: starts[0] if len(how) == 2 else starts[-1]]


def _expression(pattern: str, *, is_longest: bool) -> str:
    """Turns a shell pattern into a regular expression; only `*` and `?` are special."""
    many = ".*" if is_longest else ".*?"
    return "".join(many if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)


def arithmetic(text: str, variables: Mapping[str, str]) -> int | None:
    """Returns the value of `$((text))`; None if a variable is missing or not a number."""
    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: variables.get(match[1], "unknown"), text).strip()
    try:
        (statement,) = parse_python(plain.replace("/", "//")).body
        return _evaluate(statement.value) if isinstance(statement, ast.Expr) else None
    except (ValueError, ZeroDivisionError):
        return None


def _evaluate(node: ast.expr) -> int:
    """Returns the value of an expression. Raises `ValueError` for anything but arithmetic that a shell can do."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_evaluate(node.operand)
    else:
        raise ValueError("the expression is not arithmetic")
    if abs(value) > _MAX_NUMBER:
        raise ValueError("the number is too large for a shell")
    return value


_DIRNAME = r'dirname\s+(?:--\s+)?"?(?:\$0|\$\{BASH_SOURCE(?:\[0\])?\})"?'
_FOLDER = re.compile(
    rf'(?:{_DIRNAME}|cd\s+(?:--\s+)?"?\$\({_DIRNAME}\)(?P<rest>[\w./-]*)"?\s+(?:[\d&]?>+&?\s*\S+\s+)*&&\s*pwd(?:\s+-P)?)'
)
"""The command `dirname "$0"`, and the command `cd "$(dirname "$0")/.." && pwd`."""
_PROBE = re.compile(r"&&\s*echo\s+[\w.-]+\s*\|\|\s*echo\s+([\w.-]+)\s*$")
"""The end of a command `probe && echo one || echo other`."""


def folder_named(command: str, script_folder: str) -> str | None:
    """Returns the folder that `$(command)` prints: the current folder, or a folder near the script; else None."""
    if command.strip() == "pwd":
        return "."
    match = _FOLDER.fullmatch(command.strip())
    return os.path.normpath(script_folder + (match["rest"] or "")) if match and script_folder else None


def probed(command: str) -> str | None:
    """Returns the word that a hardware probe prints on a machine without the hardware; None for other commands."""
    match = _PROBE.search(command)
    return match[1] if match else None


def closing(text: str, start: int, pair: str) -> int:
    """Returns the index after the bracket that closes the bracket at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == pair[0]) - (text[index] == pair[1])
        if depth == 0:
            return index + 1
    return len(text)


def array_end(text: str, start: int) -> int:
    """Returns the index after the bracket that ends an array. Skips brackets in quotes, comments and expansions."""
    at, depth = start, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = text.find(char, at + 1)
            if at < 0:
                break
        elif char == "#" and text[at - 1] in " \t\n(":
            at = text.find("\n", at)
            if at < 0:
                break
        depth += (char == "(") - (char == ")")
        at += 1
        if depth == 0:
            return at
    return len(text)
