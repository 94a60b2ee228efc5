"""Settings of another system out of what its users have: scripts, flags, YAML, JSON, Python."""

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from shoal.config.translate.launch import read_flags, read_launch
from shoal.config.translate.shell import Word
from shoal.config.translate.system import System
from shoal.errors import InvalidArgument

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass
class Given:
    """What a source gives."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unset: dict[str, str] = field(default_factory=dict)
    """Fields whose value the source does not tell, and why."""

    def take(self, values: Mapping[str, Any]) -> None:
        """Adds settings; later ones replace earlier ones."""
        for name, value in values.items():
            self.values[name] = value
            self.unset.pop(name, None)


def read_given(system: System, arguments: Sequence[str]) -> Given:
    """Reads a file, flags, or a file and flags that go on top of it.

    Raises `InvalidArgument` for what cannot be read at all.
    """
    given = Given()
    rest = list(arguments)
    if rest and Path(rest[0]).suffix in (".sh", ".bash", ".yaml", ".yml", ".json", ".py"):
        _read_file(system, Path(rest.pop(0)), given)
    if rest:
        _read_words(system, [Word(text) for text in rest], given)
    return given


def _read_file(system: System, path: Path, given: Given) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    if path.suffix in (".sh", ".bash"):
        _read_script(system, text, path, given)
    elif path.suffix == ".py":
        given.take(_calls(system, text, path))
    else:
        _read_values(system, _parsed(text, path), given)


def _read_script(system: System, text: str, path: Path, given: Given) -> None:
    if not system.programs:
        raise InvalidArgument(f"{path}: {system.name} is not configured by scripts; give YAML, JSON or Python")
    launch = read_launch(text, system.programs, where=str(path))
    if launch.launcher:
        flags = [word for word in launch.launcher if word.startswith("--")]
        given.notes.append(
            f"left out with the launcher ({', '.join(dict.fromkeys(flags)) or 'no flags'}): where processes run is the "
            "deployment's; `shoal train` starts all of them on one machine"
        )
    if launch.program.endswith("grpo.py"):
        given.notes.append(
            "grpo.py trains with OLMo-core and FSDP, which are put off: the same settings are trained with DeepSpeed"
        )
    words = list(launch.arguments)
    # A program may be given a file of settings before its flags.
    if words and Path(words[0].text).suffix in (".yaml", ".yml", ".json"):
        inner = Path(words.pop(0).text)
        _read_file(system, inner if inner.is_file() else path.parent / inner, given)
    _read_words(system, words, given)


def _read_words(system: System, words: Sequence[Word], given: Given) -> None:
    if system.is_nested:
        _read_overrides(words, given)
        return
    flags = read_flags(words, known=system.names, flags=system.flags)
    given.take(flags.values)
    given.notes += flags.notes
    for name, unknown in flags.unset.items():
        given.values.pop(name, None)
        given.unset[name] = f"has no value: the script uses {', '.join(unknown)}, which it does not set"


def _read_overrides(words: Sequence[Word], given: Given) -> None:
    for word in words:
        if not word.text:
            continue
        name, equals, value = word.text.lstrip("+").partition("=")
        if name.startswith("~"):
            given.unset[name[1:]] = "is deleted from the defaults; say instead what it should be"
        elif name.startswith("--config"):
            given.unset[name] = "names a file of defaults: give that file itself"
        elif not equals:
            raise InvalidArgument(f"{word.text!r} is not of the form a.b=c")
        elif word.unknown and not value:
            given.unset[name] = f"has no value: the script uses {', '.join(word.unknown)}, which it does not set"
        else:
            if word.unknown:
                given.notes.append(f"{name}: {', '.join(word.unknown)} is not set by the script, and left empty")
            given.take({name: _scalar(value)})


def _scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{path} holds no settings: a mapping is expected")
    return value


def _read_values(system: System, values: Mapping[str, Any], given: Given) -> None:
    flat = dict(_flat(values, set(system.names))) if system.is_nested else dict(values)
    for name, value in flat.items():
        # Hydra's ${...} refer to other settings of the same file.
        resolved = _resolved(value, flat)
        if isinstance(resolved, str) and "${" in resolved:
            given.unset[name] = f"has no value: nothing here says what {resolved} is"
        else:
            given.take({name: resolved})


def _flat(values: Mapping[str, Any], known: set[str], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names; a mapping whose own name is known stays whole."""
    items: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in known:
            items += _flat(value, known, f"{name}.")
        else:
            items.append((name, value))
    return items


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("${") and value.endswith("}") and value[2:-1] in values:
        return _resolved(values[value[2:-1]], {key: item for key, item in values.items() if key != value[2:-1]})
    if isinstance(value, str):
        for key, item in values.items():
            if f"${{{key}}}" in value and not isinstance(item, Mapping | list):
                value = value.replace(f"${{{key}}}", str(item))
    return value


def _calls(system: System, text: str, path: Path) -> dict[str, Any]:
    """The keywords of the calls that hold the system's settings; nothing is run."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InvalidArgument(f"{path} cannot be read as Python: {error}") from None
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node.func) in system.calls]
    by_class = [_called(node.func) for node in found]
    if not found:
        raise InvalidArgument(f"{path} calls none of {', '.join(system.calls)}")
    if len(by_class) != len(set(by_class)):
        raise InvalidArgument(f"{path} calls {by_class[0]} {len(found)} times; give a file with one call")
    values: dict[str, Any] = {}
    for node in found:
        for keyword in node.keywords:
            if keyword.arg is None:
                raise InvalidArgument(f"{path} line {node.lineno}: **settings cannot be read without running them")
            values[keyword.arg] = _value(keyword.value, constants, path)
    return values


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.expr, constants: Mapping[str, ast.expr], path: Path) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.Name) and node.id in constants:
        others = {name: value for name, value in constants.items() if name != node.id}
        return _value(constants[node.id], others, path)
    if isinstance(node, ast.Attribute):
        # A member of an enum is its name: GRPOLossType.dapo.
        return node.attr
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_value(side, constants, path) for side in (node.left, node.right))
        if isinstance(left, int | float) and isinstance(right, int | float):
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
    raise InvalidArgument(f"{path} line {node.lineno}: {ast.unparse(node)} cannot be read without running the file")
