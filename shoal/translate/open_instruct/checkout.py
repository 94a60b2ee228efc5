"""Reads chat templates and defaults from a checkout of open-instruct, whose code is parsed and never run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.paths import why_unread
from shoal.translate.shared.draft import Checkout
from shoal.translate.sources.values import called

_PACKAGE = "open_instruct"
_TRAINER = "grpo_fast.py"
_TEMPLATES = ("dataset_transformation.py", "CHAT_TEMPLATES")
_UNKNOWN = object()
"""Marks a default that only a run could show."""


def read_checkout(folder: Path) -> Checkout:
    """Reads a checkout. Raises `InvalidArgument` if the folder is no checkout, or if its code has an unknown form."""
    package = folder / _PACKAGE
    if not (package / _TRAINER).is_file():
        raise InvalidArgument(
            f"--checkout {folder}: there is no {_PACKAGE}/{_TRAINER} in it; give the folder of a clone of open-instruct"
        )
    return Checkout(folder, _defaults(package), _chat_templates(package))


@dataclass(frozen=True)
class _Module:
    package: Path
    tree: ast.Module

    def imported(self) -> dict[str, str]:
        """Returns, for each imported name, the module of the package that it means or comes from."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == _PACKAGE:
                inner = node.module.partition(".")[2]
                found |= {alias.asname or alias.name: inner or alias.name for alias in node.names}
        return found

    def find(self, node: ast.expr) -> "tuple[ast.ClassDef, _Module] | None":
        """Returns the class that an expression names, and its module; None for a class from outside the package."""
        owner = node.value if isinstance(node, ast.Attribute) else node
        module = self.imported().get(called(owner))
        if module is None and isinstance(node, ast.Attribute):
            return None
        home = self if module is None else _module(self.package, f"{module.replace('.', '/')}.py")
        classes = (item for item in home.tree.body if isinstance(item, ast.ClassDef) and item.name == called(node))
        return next(((found, home) for found in classes), None)


def _module(package: Path, name: str) -> _Module:
    try:
        return _Module(package, ast.parse((package / name).read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgument(f"--checkout: {package / name} cannot be read: {why_unread(error)}") from None


def _defaults(package: Path) -> dict[str, Any]:
    """Returns the defaults of the classes that the trainer's argument parser fills."""
    trainer = _module(package, _TRAINER)
    calls = [node for node in ast.walk(trainer.tree) if isinstance(node, ast.Call)]
    classes = [
        item
        for call in calls
        if "Parser" in called(call.func) and call.args and isinstance(call.args[0], ast.Tuple)
        for item in call.args[0].elts
    ]
    if not classes:
        problem = "has no argument parser over a tuple of classes, so its defaults cannot be read"
        raise InvalidArgument(f"--checkout: {package / _TRAINER} {problem}: give another version")
    defaults = dict(field for node in classes for field in _fields(node, trainer))
    for call in calls:
        if called(call.func) == "set_defaults":
            defaults |= {word.arg: _value(word.value) for word in call.keywords if word.arg is not None}
    return {name: value for name, value in defaults.items() if value is not _UNKNOWN}


def _fields(node: ast.expr, module: _Module) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a class and of its bases, with their defaults. A later field replaces an earlier one."""
    found = module.find(node)
    if found is None:
        return
    class_, home = found
    for base in reversed(class_.bases):
        yield from _fields(base, home)
    for item in class_.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            yield item.target.id, _value(item.value)


def _value(node: ast.expr) -> Any:
    """Returns a default: a literal, a member of an enumeration by its name, or the default of a dataclass field."""
    if isinstance(node, ast.Call) and called(node.func) == "field":
        words = {word.arg: word.value for word in node.keywords}
        if "init" in words:  # Fields outside of the constructor are set at run time.
            return _UNKNOWN
        if "default" in words:
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


def _chat_templates(package: Path) -> dict[str, str | None]:
    file, name = _TEMPLATES
    for node in _module(package, file).tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if isinstance(value, ast.Dict) and any(called(target) == name for target in targets):
            pairs = zip(value.keys, value.values, strict=True)
            return {text: _text(item) for key, item in pairs if key is not None and (text := _text(key))}
    raise InvalidArgument(f"--checkout: {package / file} has no dictionary {name}: give another version")


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
