"""The source of each name of a test: the program or this process.

A test takes the tested objects from the program. Everything that it compares with comes from this process: builtins,
modules, and functions and classes of the standard library. Otherwise a program could define, import or assign `abs`,
`statistics` or `isclose` as an object that accepts any answer.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import symtable
import sys
import types
from collections.abc import Iterator, Set
from typing import Any

from services.reward.sandbox.inside.remote import Subject

# Modules that change nothing outside. The tests import from them what the program imports, so a program that changes
# its own copies does not change the tests.
_HARMLESS_MODULES = (
    "bisect", "cmath", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re",
    "statistics", "string", "typing",
)  # fmt: skip
# These are not in the sandbox, but a program must not replace them either.
_PACKAGES = {"np": "numpy", "numpy": "numpy", "pytest": "pytest"}
# Functions, classes and constants with which tests compare, by module. Their meaning is unambiguous, so a correct
# program's own version is equivalent. A program's `search` or `product` may be anything.
_COMPARED_WITH = {
    "bisect": "bisect_left bisect_right insort",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "deepcopy",
    "datetime": "timedelta",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "functools": "cmp_to_key partial reduce",
    "heapq": "nlargest nsmallest",
    "itertools": "accumulate chain combinations combinations_with_replacement groupby islice permutations starmap "
    "takewhile dropwhile zip_longest",
    "math": "ceil comb copysign cos fabs factorial floor fmod fsum gcd hypot inf isclose isfinite isinf isnan isqrt "
    "lcm log10 log2 nan perm pi prod sin sqrt tan tau trunc",
    "numpy": "allclose array_equal assert_allclose assert_almost_equal assert_array_equal",
    "operator": "attrgetter itemgetter methodcaller",
    "pytest": "approx raises",
    "statistics": "fmean mean median pstdev pvariance",
    "string": "ascii_letters ascii_lowercase ascii_uppercase",
    "unittest": "TestCase",
}
_HOME = {name: module for module, names in _COMPARED_WITH.items() for name in names.split()}
_NOWHERE = object()


class _Imports:
    """A program's imports from harmless modules at its top level, for names that it does not bind otherwise."""

    def __init__(self, program: str) -> None:
        self.plain: dict[str, Any] = {}
        """Modules and their contents under their own names."""
        self.renamed: dict[str, Any] = {}
        """Modules and their contents under new names."""
        for statement in ast.parse(program).body:
            if isinstance(statement, ast.Import):
                self._add_modules(statement)
            elif (
                isinstance(statement, ast.ImportFrom) and statement.module in _HARMLESS_MODULES and not statement.level
            ):
                self._add_content(importlib.import_module(statement.module), statement.names)
        bound = {
            name for name, symbol in _symbols(symtable.symtable(program, "program", "exec")) if symbol.is_assigned()
        }
        for name in bound:
            self.plain.pop(name, None)
            self.renamed.pop(name, None)
        self.all = self.renamed | self.plain

    def _add_modules(self, statement: ast.Import) -> None:
        for alias in statement.names:
            if alias.name in _HARMLESS_MODULES:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                is_plain = alias.asname in (None, alias.name)
                (self.plain if is_plain else self.renamed)[alias.asname or top] = importlib.import_module(top)

    def _add_content(self, module: Any, aliases: list[ast.alias]) -> None:
        content = vars(module)
        for alias in aliases:
            if alias.name == "*":
                self.plain |= {name: content[name] for name in _public_names(module)}
            elif alias.name in content:
                is_plain = alias.asname in (None, alias.name)
                (self.plain if is_plain else self.renamed)[alias.asname or alias.name] = content[alias.name]


_imports = functools.lru_cache(maxsize=1)(_Imports)


def names_of(test: str, program: str, subject: Subject, known: Set[str]) -> dict[str, Any]:
    """Returns the values of the names that a test uses without binding them, except builtins and `known` names.

    Names with which tests compare, such as `isclose`, come from this process. If the test uses no other name of the
    program, one of them comes from the program: the first name that is not called with the result of another such name.
    """
    tree = ast.parse(test)
    free, imports = _free_names(test) - known, _imports(program)
    compared_with = {name: value for name in free if (value := _library(name, tree, imports)) is not None}
    wanted = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - compared_with.keys() - known
    tested = subject.names(sorted(wanted)) | {name: imports.all[name] for name in wanted if name in imports.all}
    if not free & tested.keys():
        bound = subject.names(sorted(compared_with))
        if bound:
            name = _innermost(tree, bound.keys())
            tested[name] = imports.all.get(name, bound[name])
    return {name: value for name, value in compared_with.items() if value is not _NOWHERE} | tested


def _library(name: str, tree: ast.AST, imports: _Imports) -> Any:
    """Returns the object of a name with which tests compare; `_NOWHERE` if it is not installed; else None."""
    if hasattr(builtins, name):
        return getattr(builtins, name)
    is_plain = name in imports.plain
    if (name in sys.stdlib_module_names or name in _PACKAGES) and (used := _attributes(tree, name)):
        module = _imported(_PACKAGES.get(name, name))
        if name in _PACKAGES or (module is not _NOWHERE and all(hasattr(module, attribute) for attribute in used)):
            return imports.plain[name] if is_plain else module
    if name in _HOME:
        return imports.plain[name] if is_plain else getattr(_imported(_HOME[name]), name, _NOWHERE)
    if name in imports.renamed and not isinstance(imports.renamed[name], types.ModuleType):
        # A library's function under the name of another function.
        homes = map(importlib.import_module, _HARMLESS_MODULES)
        return next((getattr(home, name) for home in homes if name in _public_names(home)), None)
    return None


def _imported(module: str) -> Any:
    with contextlib.suppress(Exception):
        return importlib.import_module(module)
    return _NOWHERE


def _public_names(module: Any) -> set[str]:
    """Returns the names that `from module import *` binds."""
    content = vars(module)
    public: list[str] = content.get("__all__", [name for name in content if not name.startswith("_")])
    return {name for name in public if name in content}


def _attributes(tree: ast.AST, name: str) -> set[str]:
    """Returns the attributes of a name that a test uses; empty if it also uses the name itself."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is(node.value, name)]
    num_uses = sum(_is(node, name) for node in ast.walk(tree))
    return {node.attr for node in attributes} if len(attributes) == num_uses else set()


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _symbols(table: symtable.SymbolTable) -> Iterator[tuple[str, symtable.Symbol]]:
    return ((symbol.get_name(), symbol) for symbol in table.get_symbols())


def _free_names(test: str) -> set[str]:
    """Returns the names that a test uses in any scope and binds in none."""
    top = symtable.symtable(test, "test", "exec")
    bound = {name for name, symbol in _symbols(top) if symbol.is_assigned() or symbol.is_imported()}
    used: set[str] = set()
    tables = [top]
    for table in tables:  # The list grows meanwhile.
        used |= {
            name for name, symbol in _symbols(table) if symbol.is_referenced() and (table is top or symbol.is_global())
        }
        tables += table.get_children()
    return used - bound


def _innermost(tree: ast.AST, names: Any) -> str:
    """Returns the first name that a test uses and does not apply to another name's result."""
    outer = {
        name
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and (name := _base(call.func)) in names
        for part in [*call.args, *call.keywords]
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and node.id in names and node.id != name
    }
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    ordered = [node.id for node in sorted(uses, key=lambda node: (node.lineno, node.col_offset))]
    return next((name for name in ordered if name not in outer), ordered[0])


def _base(function: ast.AST) -> str:
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""
