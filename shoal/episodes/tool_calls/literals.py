"""Reads literals of Python that JSON can express, and true, false, null and none in any case. Runs no code."""

import ast
from typing import Any

from shoal.parsing import MAX_DEPTH, parse_python

_NAMES = {"true": True, "false": False, "null": None, "none": None}


def literal(text: str) -> Any:
    """Returns the value of a text that is one literal. Raises `ValueError` for other texts."""
    match parse_python(text).body:
        case [ast.Expr(value=ast.Tuple())] if not text.startswith("("):
            raise ValueError("it is several values: 1,000 is no number")
        case [ast.Expr(value=node)]:
            return literal_of(node)
    raise ValueError("it is no literal")


def literal_of(node: ast.expr, depth: int = 0) -> Any:
    """Returns the value of a literal that JSON can express. Raises `ValueError` for anything else."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the arguments are nested deeper than {MAX_DEPTH} levels")
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name.lower() in _NAMES:
            return _NAMES[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [literal_of(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            names = [literal_of(key, depth) for key in keys if key is not None]
            if all(isinstance(name, str) for name in names):
                return {name: literal_of(value, depth + 1) for name, value in zip(names, values, strict=True)}
    raise ValueError("the arguments must be literals: texts, numbers, lists, objects with names as keys")
