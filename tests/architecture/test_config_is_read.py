"""No option is parsed and ignored: every field of RunConfig has a reader outside `shoal/config`.

Looked for in the syntax trees of `shoal/` and `services/`. A field F of a section S is read by `.S.F`, or by `.F` in a
file that takes S apart (by `.S`, or by the name of its class). A field that only a property of the section reads is as
good as read where that property is read. Options of a verifier are handed to it as keywords: its parameters read them.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from services.reward.registry import ALL_VERIFIERS
from shoal.config import RunConfig

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "shoal" / "config"
UNREAD: Mapping[str, str] = {
    "run.total_episodes": "another way to say run.num_steps, which is set from it when the configuration is validated",
}
"""Fields without a reader, and why that is right."""


def fields(section: type[BaseModel], names: tuple[str, ...] = ()) -> Iterator[tuple[str, type[BaseModel], str]]:
    """Path, owner's class and name of every field below a section; `names` are those of the sections above."""
    for name, field in section.model_fields.items():
        inner = next(iter(_sections(field.annotation)), None)
        if inner is None:
            yield ".".join((*names, name)), _owner(section, name), name
        else:
            yield from fields(inner, (*names, name))


def _owner(section: type[BaseModel], name: str) -> type[BaseModel]:
    """The class that says the field: sections may share some."""
    return next(base for base in section.__mro__ if name in inspect.get_annotations(base))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for item in get_args(annotation):
        yield from _sections(item)


class Names(ast.NodeVisitor):
    """The attributes that a file reads, each with the one that it is read of, and the bare names that it uses."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self.attributes: set[str] = set()
        self.bare: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
            of = node.value
            self.pairs.add((of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", ""), node.attr))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.bare.add(node.id)

    def visit_Constant(self, node: ast.Constant) -> None:
        # An annotation may be in quotes.
        if isinstance(node.value, str):
            self.bare.add(node.value)


@cache
def names_by_file() -> dict[Path, Names]:
    found = {}
    for folder in ("shoal", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            if CONFIG not in path.parents and "v1" not in path.parts:
                found[path] = Names()
                found[path].visit(ast.parse(path.read_text()))
    return found


@cache
def properties_that_read(owner: str) -> dict[str, set[str]]:
    """By field, the methods of classes in `shoal/config` that read it, of the class itself or of a section of it."""
    readers: dict[str, set[str]] = {}
    for path in CONFIG.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not _is_validator(method):
                    names = Names()
                    names.visit(method)
                    for of, attribute in names.pairs:
                        if node.name == owner or of != "self":
                            readers.setdefault(attribute, set()).add(method.name)
    return readers


def _is_validator(method: ast.FunctionDef) -> bool:
    return any("validator" in ast.unparse(decorator) for decorator in method.decorator_list)


def is_read(path: str, owner: type[BaseModel], name: str) -> bool:
    if path.startswith("reward.verifiers."):
        return name in inspect.signature(ALL_VERIFIERS[path.split(".")[2]].verify).parameters
    section = path.split(".")[-2]
    for names in names_by_file().values():
        if (section, name) in names.pairs:
            return True
        takes_apart = owner.__name__ in names.bare or section in names.attributes
        if takes_apart and name in names.attributes:
            return True
    return False


@pytest.mark.parametrize(("path", "owner", "name"), [pytest.param(*field, id=field[0]) for field in fields(RunConfig)])
def test_every_option_is_read_by_what_it_is_for(path: str, owner: type[BaseModel], name: str) -> None:
    derived = properties_that_read(owner.__name__)
    ways, new = {name}, {name}
    while new := {method for field in new for method in derived.get(field, set())} - ways:
        ways |= new
    read = is_read(path, owner, name) or any(
        way in names.attributes for way in ways - {name} for names in names_by_file().values()
    )
    if path in UNREAD:
        assert not read, f"{path} has a reader: take it out of the exceptions"
        return
    assert read, f"{path} is parsed and ignored: nothing outside shoal/config reads it (looked for {sorted(ways)})"
