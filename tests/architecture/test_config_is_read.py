"""No option is parsed and ignored: every field of RunConfig has a reader outside `shoal/config`.

Looked for in the syntax trees of `shoal/` and `services/`. A field F of a section S is read by `.S.F`, or by `.F` of a
variable, parameter or attribute that its file gives S to, or annotates with the class of S. A field that only a
property of the section reads is as good as read where that property is read. Options of a verifier are handed to it as
keywords: its parameters read them.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from services.reward.verifiers.registry import ALL_VERIFIERS
from shoal.config import RunConfig
from shoal.config.tables.section import Section
from tests.support.repository import ROOT

CONFIG = ROOT / "shoal" / "config"
UNREAD: Mapping[str, str] = {
    "run.total_episodes": "an alternative to run.num_steps, which validation computes from it",
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
    """Returns the class that declares the field; sections may share fields."""
    return next(base for base in section.__mro__ if name in inspect.get_annotations(base))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for item in get_args(annotation):
        yield from _sections(item)


class Names(ast.NodeVisitor):
    """The attributes that a file reads, each with the name that it is read of, and what these names stand for."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        """`a.b.c` is (b, c)."""
        self.attributes: set[str] = set()
        self.stands_for: dict[str, set[str]] = {}
        """Sections, and classes of sections, by the variable, parameter or attribute that holds them."""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
            self.pairs.add((_last_name(node.value), node.attr))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._note(node.target, _words(node.annotation))
        if node.value is not None:
            self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation is not None:
            self.stands_for.setdefault(node.arg, set()).update(_words(node.annotation))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._bind(one, its)
        elif isinstance(target, ast.Tuple):
            for one in target.elts:
                self._bind(one, value)
        else:
            self._note(target, _words(value))

    def _note(self, target: ast.expr, words: set[str]) -> None:
        self.stands_for.setdefault(_last_name(target), set()).update(words)

    def reads(self, holders: set[str], name: str) -> bool:
        """Whether it is read of a section or class with such a name, or of something that was given one."""
        # Most files never read the attribute: this makes the tests some ten times faster.
        for of, attribute in self.pairs if name in self.attributes else ():
            if attribute != name:
                continue
            seen, new = set[str](), {of}
            while new:
                if new & holders:
                    return True
                seen |= new
                new = {word for one in new for word in self.stands_for.get(one, ())} - seen
        return False


def _last_name(node: ast.expr) -> str:
    """b of `a.b`, a of `a`, `a[0]` and `a()`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _words(node: ast.expr) -> set[str]:
    """The last names of what an expression is made of; those of an annotation, which may be in quotes."""
    words = {_last_name(node)}
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute):
            words.add(child.attr)
        elif isinstance(child, ast.Name):
            words.add(child.id)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier():
            words.add(child.value)
    return words - {"", "self"}


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
def properties_that_read(owner: str) -> dict[str, set[tuple[str, str]]]:
    """By field, class and name of the methods in `shoal/config` that read it, of the class itself or of a section of
    it."""
    readers: dict[str, set[tuple[str, str]]] = {}
    inherited = {base.__name__: RunConfig.__name__ for base in RunConfig.__mro__ if issubclass(base, Section)}
    for path in CONFIG.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not _is_validator(method):
                    names = Names()
                    names.visit(method)
                    for of, attribute in names.pairs:
                        if of in sections_by_class().get(owner, ()) or (of == "self" and node.name == owner):
                            holder = inherited.get(node.name, node.name)
                            readers.setdefault(attribute, set()).add((holder, method.name))
    return readers


def _is_validator(method: ast.FunctionDef) -> bool:
    return any("validator" in ast.unparse(decorator) for decorator in method.decorator_list)


@cache
def sections_by_class() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path, owner, _ in fields(RunConfig):
        found.setdefault(owner.__name__, set()).add(path.split(".")[-2])
    return found


def is_read(path: str, owner: type[BaseModel], name: str) -> bool:
    """Whether anything outside `shoal/config` reads a field, or a property that is made of it."""
    if path.startswith("reward.verifiers."):
        verifier = ALL_VERIFIERS[path.split(".")[2]]
        modules = filter(None, (inspect.getmodule(verifier.verify), inspect.getmodule(verifier.options)))
        return any(f"options.{name}" in inspect.getsource(module) for module in modules)
    # A field that a section inherits is also read where only the common part is known.
    classes = {one.__name__ for one in owner.__mro__ if name in getattr(one, "model_fields", {})} or {owner.__name__}
    if _is_used({path.split(".")[-2], *classes}, name):
        return True
    derived = properties_that_read(owner.__name__)
    seen, new = set[tuple[str, str]](), set(derived.get(name, ()))
    while new:
        if any(_is_used({of, *sections_by_class().get(of, ())}, method) for of, method in new):
            return True
        seen |= new
        new = {way for _, method in new for way in derived.get(method, ())} - seen
    return False


def _is_used(holders: set[str], name: str) -> bool:
    return any(names.reads(holders, name) for names in names_by_file().values())


@pytest.mark.parametrize(("path", "owner", "name"), [pytest.param(*field, id=field[0]) for field in fields(RunConfig)])
def test_every_option_has_a_reader(path: str, owner: type[BaseModel], name: str) -> None:
    if path in UNREAD:
        assert not is_read(path, owner, name), f"{path} has a reader: take it out of the exceptions"
        return
    assert is_read(path, owner, name), f"{path} is parsed and ignored: nothing outside shoal/config reads it"


def test_an_option_that_nothing_reads_would_be_found() -> None:
    """Each section is given every name that another section has: only by such a name could one pass unread."""
    sections = {path.rpartition(".")[0]: owner for path, owner, _ in fields(RunConfig) if "verifiers" not in path}
    every = {name for _, _, name in fields(RunConfig)}
    assert not any(is_read(f"{section}.a_new_option", owner, "a_new_option") for section, owner in sections.items())
    decoys = [(section, owner, name) for section, owner in sections.items() for name in every - set(owner.model_fields)]
    missed = [f"{section}.{name}" for section, owner, name in decoys if is_read(f"{section}.{name}", owner, name)]
    assert len(missed) < 0.03 * len(decoys), f"{len(missed)} of {len(decoys)} would pass unread: {missed}"
