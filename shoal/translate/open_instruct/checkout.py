"""Reads chat templates and defaults from a checkout of open-instruct. Its code is parsed, and never run."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.translate.shared.checkout import Checkout

_PACKAGE = "open_instruct"
_TRAINER = "grpo_fast.py"
_TEMPLATES = ("dataset_transformation.py", "CHAT_TEMPLATES")
_UNKNOWN = object()
"""The default of a field that only a run could show."""


def read_checkout(folder: Path) -> Checkout:
    """Reads a checkout. Raises `InvalidArgument` for a folder that is none, and for code in another form."""
    package = folder / _PACKAGE
    if not (package / _TRAINER).is_file():
        raise InvalidArgument(
            f"--checkout {folder}: there is no {_PACKAGE}/{_TRAINER} in it; give the folder of a clone of open-instruct"
        )
    return Checkout(folder, _defaults(package), _chat_templates(package / _TEMPLATES[0]))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgument(f"--checkout: {path} cannot be read: {error}") from None


def _defaults(package: Path) -> dict[str, Any]:
    """Returns the defaults of the classes that the trainer's argument parser fills."""
    trainer = _parsed(package / _TRAINER)
    calls = [node for node in ast.walk(trainer) if isinstance(node, ast.Call)]
    classes = [
        _name(item)
        for call in calls
        if "Parser" in _name(call.func) and call.args and isinstance(call.args[0], ast.Tuple)
        for item in call.args[0].elts
    ]
    if not classes:
        raise InvalidArgument(f"--checkout: {package / _TRAINER} has no argument parser over a tuple of classes")
    defaults = dict(field for name in classes for field in _fields(package, name))
    for call in calls:
        if _name(call.func) == "set_defaults":
            defaults |= {word.arg: _value(word.value) for word in call.keywords if word.arg is not None}
    return {name: value for name, value in defaults.items() if value is not _UNKNOWN}


def _fields(package: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a class and of its bases, with their defaults; a later one replaces an earlier one."""
    found = _class(package, name)
    for base in reversed(found.bases) if found else ():
        yield from _fields(package, _name(base))
    for node in found.body if found else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, _value(node.value)


def _class(package: Path, name: str) -> ast.ClassDef | None:
    head = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
    for path in sorted(package.rglob("*.py")):
        if head.search(path.read_text(encoding="utf-8", errors="replace")):
            nodes = [node for node in _parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name]
            return nodes[0] if nodes else None
    return None


def _value(node: ast.expr) -> Any:
    """Returns the value of a default: a literal, a member of an enumeration by its name, or a dataclass field's."""
    if isinstance(node, ast.Call) and _name(node.func) == "field":
        words = {word.arg: word.value for word in node.keywords}
        if "default" in words and "init" not in words:  # What is not in the constructor is set at run time.
            return _value(words["default"])
        factory = words.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return _value(factory.body)
        return [] if isinstance(factory, ast.Name) and factory.id == "list" else _UNKNOWN
    if isinstance(node, ast.Attribute):
        return node.attr
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN


def _chat_templates(path: Path) -> dict[str, str | None]:
    name = _TEMPLATES[1]
    for node in _parsed(path).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if isinstance(value, ast.Dict) and any(_name(target) == name for target in targets):
            pairs = zip(value.keys, value.values, strict=True)
            return {text: _text(item) for key, item in pairs if key is not None and (text := _text(key))}
    raise InvalidArgument(f"--checkout: {path} has no dictionary {name}")


def _text(node: ast.expr) -> str | None:
    """Returns the text of a string, of a sum of strings, or of an f-string without values; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
    elif isinstance(node, ast.JoinedStr):
        parts = [_text(part) for part in node.values]
    else:
        return None
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None


def _name(node: ast.AST) -> str:
    """Returns the last part of a name: `f` of `f`, and of `module.f`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
