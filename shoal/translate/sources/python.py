"""Reads the settings in a Python file or a notebook (the keywords of calls) without running it."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.parsing import parse_json, parse_python
from shoal.translate.shared.system import System
from shoal.translate.sources.datasets import Datasets
from shoal.translate.sources.functions import own_function
from shoal.translate.sources.settings import Settings
from shoal.translate.sources.values import Unread, Values, called, statements

_OTHER_TRAINER = re.compile(r"(SFT|DPO|ORPO|KTO|CPO)Trainer$")


def notebook_code(text: str, path: Path) -> str:
    """Returns the code of a notebook's cells, without the lines for the notebook itself (%, !).

    Raises `InvalidArgument` for a file that is not a notebook.
    """
    try:
        cells = parse_json(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        lines = [line for source in sources for line in "".join(source).splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path} is not a notebook, which is JSON with a list `cells`: {error!r}") from None
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def read_calls(system: System, text: str, path: Path, settings: Settings) -> None:
    """Adds the keywords of the calls that contain the system's settings, without running anything.

    If a file parses its command line, only its assignments and its `calls_beside` are read. Raises `InvalidArgument`
    for a file that has no settings and parses no command line, and for a file that calls one class several times.
    """
    try:
        tree = parse_python(text)
        values = Values(tree)
    except ValueError as error:
        raise InvalidArgument(f"{path} cannot be read as Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [node for node in calls if called(node.func) in system.calls]
    by_class = [called(node.func) for node in found]
    parsed = set() if found else _parsed_names(tree, calls, system)
    if not found and not parsed:
        raise InvalidArgument(_why_none(system, calls, path))
    if len(by_class) != len(set(by_class)):
        raise InvalidArgument(f"{path} calls {by_class[0]} {len(found)} times; give a file that calls it once")
    if parsed:
        settings.notes.append(
            f"{path.name} takes its settings from the command line: give its flags after the file; for each flag that "
            f"is missing, {system.name}'s default is used"
        )
    file = _File(system, tree, path, values, settings, parsed)
    for node in found:
        if any(keyword.arg is None for keyword in node.keywords):
            raise InvalidArgument(f"{path} line {node.lineno}: **settings cannot be read: write the keywords out")
        for keyword in node.keywords:
            file.read_keyword(keyword)
    # Models that are loaded after the trainer only try the trained model.
    ends = [node.end_lineno or node.lineno for node in calls if called(node.func) == system.trainer]
    for node in calls:
        if _is_beside(node, system) and node.lineno <= max(ends, default=node.lineno):
            file.read_call_beside(node)
    file.read_assignments(parsed | _names_of(tree, found))
    others = sorted({name for node in calls if _OTHER_TRAINER.search(name := called(node.func))})
    if others:
        settings.notes.append(
            f"{' and '.join(others)} in {path.name} trains the model by another method, which is not part of the run; "
            "to begin with its result, save that model, and give its path with --set model.path=..."
        )


def _why_none(system: System, calls: list[ast.Call], path: Path) -> str:
    for name in (called(node.func) for node in calls):
        if name in system.refused_calls:
            return f"{path}: {name} is not translated: {system.refused_calls[name]}"
    return f"{path} contains no call of {' or '.join(system.calls)}: give the file with the settings"


def _parsed_names(tree: ast.Module, calls: list[ast.Call], system: System) -> set[str]:
    """Returns the names of the arguments that a file parses from its command line; empty if it parses none."""
    parsers = [node for node in calls if called(node.func).endswith("Parser")]
    classes = {
        called(part) for node in parsers for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)
    }
    if not classes.intersection(system.calls):
        return set()
    parses = [node for node in calls if called(node.func).startswith("parse_args")]
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value in parses]
    targets = [part for node in assigned for target in node.targets for part in ast.walk(target)]
    return {part.id for part in targets if isinstance(part, ast.Name)}


def _names_of(tree: ast.Module, found: list[ast.Call]) -> set[str]:
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value in found]
    return {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _is_beside(node: ast.Call, system: System) -> bool:
    """Returns whether a call is one of `calls_beside`: "f" by the name of the function, or "C.f" with its class."""
    name = called(node.func)
    owner = called(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return name in system.calls_beside or f"{owner}.{name}" in system.calls_beside


@dataclass(frozen=True)
class _File:
    system: System
    tree: ast.Module
    path: Path
    values: Values
    settings: Settings
    parsed: set[str]
    """The names of the arguments that the file parses from its command line."""

    def read_keyword(self, keyword: ast.keyword) -> None:
        """Adds a keyword of a configuration class. If its value is a call, adds the call's keywords."""
        name = str(keyword.arg)
        if name in self.system.parts and (part := self.values.call(keyword.value)) is not None:
            names = self.system.parts[name]
            for inner in part.keywords:
                self._read_value(names.get(str(inner.arg), str(inner.arg)), inner.value)
            return
        self._read_value(name, keyword.value)

    def read_call_beside(self, node: ast.Call) -> None:
        """Adds the keywords of another call that the table has rows for."""
        name = called(node.func)
        parameters = self.system.positional_parameters.get(name, ())
        positional = [ast.keyword(word, value) for word, value in zip(parameters, node.args, strict=False) if word]
        for keyword in [*positional, *node.keywords]:
            if self.system.knows(f"{name}.{keyword.arg}"):
                self._read_value(f"{name}.{keyword.arg}", keyword.value)

    def read_assignments(self, configurations: set[str]) -> None:
        """Adds the fields that the file assigns to its configuration, and the chat template of a tokenizer."""
        bodies = [node.body for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        for statement in (item for body in [self.tree.body, *bodies] for item in statements(body)):
            if not isinstance(node := statement.node, ast.Assign):
                continue
            for target in (target for target in node.targets if isinstance(target, ast.Attribute)):
                owner, name = called(target.value), target.attr
                is_template = name == "chat_template" and owner not in configurations
                if not self.system.knows(name) or not (is_template or owner in configurations):
                    continue
                if statement.is_undecided:
                    reason = f"has no value: line {node.lineno} sets it under a condition, which is not evaluated"
                    self.settings.miss(name, reason)
                else:
                    self._read_value(name, node.value)
                    if self.parsed and name in self.settings.values and name not in self.system.piecewise:
                        self.settings.fixed[name] = self.settings.values[name]

    def _read_value(self, name: str, node: ast.expr) -> None:
        value = self._value(name, node)
        unread = value if isinstance(value, Unread) else None
        if isinstance(value, dict) and self.parsed:
            # Values from the command line are flags, which are read elsewhere.
            value = {key: item for key, item in value.items() if not isinstance(item, Unread)}
        if isinstance(value, dict) and name not in self.system.piecewise:
            unread = next((item for item in value.values() if isinstance(item, Unread)), None)
        if unread is not None and self.values.depends(node, self.parsed):
            self.settings.notes.append(f"{name} = {unread.text} depends on the command line: give its flags")
        elif unread is None:
            self.settings.take({name: value})
        else:
            reason = f"has no value: line {node.lineno}, {unread.text}, cannot be read without running the file"
            self.settings.miss(name, reason)

    def _value(self, name: str, node: ast.expr) -> Any:
        if name in self.system.datasets:
            return Datasets(self.tree, self.values).read(node)
        if name not in self.system.functions:
            return self.values.read(node)
        texts = self.values.function_names(node)
        for text, item in zip(texts, self.values.items(node), strict=True):
            if isinstance(item, ast.Name) and (function := own_function(self.tree, item.id, self.path)) is not None:
                self.settings.functions[text] = function
        return texts
