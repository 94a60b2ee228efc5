"""Settings of another system out of what its users have: scripts, flags, YAML, JSON, Python, notebooks."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.config.translate.given import Given
from shoal.config.translate.launch import read_flags, read_launch
from shoal.config.translate.python import notebook_code, read_calls
from shoal.config.translate.shell import Word
from shoal.config.translate.system import System
from shoal.errors import InvalidArgument


def read_given(system: System, arguments: Sequence[str]) -> Given:
    """Reads a file, flags, or a file and flags that go on top of it.

    Raises `InvalidArgument` for what cannot be read at all.
    """
    given = Given()
    rest = list(arguments)
    if rest and Path(rest[0]).suffix in (".sh", ".bash", ".yaml", ".yml", ".json", ".py", ".ipynb"):
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
    elif path.suffix in (".py", ".ipynb"):
        read_calls(system, notebook_code(text, path) if path.suffix == ".ipynb" else text, path, given)
    else:
        _read_values(system, _parsed(text, path), given)


def _read_script(system: System, text: str, path: Path, given: Given) -> None:
    if not system.programs:
        raise InvalidArgument(f"{path}: {system.name} is not configured by scripts; give YAML, JSON or Python")
    launch = read_launch(text, system.programs, where=str(path))
    if flags := [word.partition("=")[0] for word in launch.launcher if word.startswith("--") and len(word) > 2]:
        given.notes.append(
            f"left out with the launcher ({', '.join(dict.fromkeys(flags))}): where processes run is the "
            "deployment's; `shoal train` starts all of them on one machine"
        )
    if "num_processes" in system.names and (processes := _processes(launch.launcher)):
        given.take({"num_processes": processes})
    for guess in launch.guesses:
        given.notes.append(f"{guess} depends on a test that only running the script could tell: check it")
    if launch.program.endswith("grpo.py"):
        given.notes.append(
            "grpo.py trains with OLMo-core and FSDP, which are put off: the same settings are trained with DeepSpeed"
        )
    words = list(launch.arguments)
    # A program may be given a file of settings before its flags.
    if words and Path(words[0].text).suffix in (".yaml", ".yml", ".json"):
        inner = Path(words.pop(0).text)
        _read_file(system, inner if inner.is_file() else path.parent / inner, given)
    _read_words(system, words, given, folder=path.parent)


def _processes(launcher: Sequence[str]) -> str | None:
    """What accelerate or torchrun is told of the number of processes."""
    for index, word in enumerate(launcher):
        name, equals, value = word.lstrip("-").replace("-", "_").partition("=")
        if word.startswith("--") and name in ("num_processes", "nproc_per_node"):
            return value if equals else next(iter(launcher[index + 1 :]), None)
    return None


def _read_words(system: System, words: Sequence[Word], given: Given, *, folder: Path | None = None) -> None:
    if system.is_nested:
        _read_overrides(words, given)
        return
    flags = read_flags(words, known=system.names, flags=system.flags)
    if "config" not in system.names and isinstance(config := flags.values.pop("config", None), str):
        # TRL's and accelerate's parsers read a file first, whatever its place among the flags.
        path = Path(config)
        beside = next(
            (at / path for at in (folder, *(folder.parents if folder else ())) if at and (at / path).is_file()), path
        )
        _read_file(system, beside, given)
    given.take(flags.values)
    given.notes += flags.notes
    for name, unknown in flags.unset.items():
        given.values.pop(name, None)
        given.unset[name] = f"has no value: the script uses {', '.join(unknown)}, which it does not set"


def _read_overrides(words: Sequence[Word], given: Given) -> None:
    texts = iter(words)
    for word in texts:
        if not word.text:
            continue
        name, equals, value = word.text.lstrip("+").partition("=")
        if name.startswith("~"):
            given.unset[name[1:]] = "is deleted from the defaults; say instead what it should be"
        elif name in ("--config-path", "--config-dir", "--config-name", "-cp", "-cd", "-cn"):
            value = value if equals else next((other.text for other in texts), "")
            if name in ("--config-name", "-cn") and not re.fullmatch(r"(ppo|dapo)(_\w+)?_trainer(\.yaml)?", value):
                given.unset[name] = f"names a file of defaults, {value}: translate that file, with these on top of it"
            else:
                given.notes.append(f"{name} = {value}: the defaults are those of verl's own ppo_trainer.yaml")
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


_DEEPEST = 32


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{path} holds no settings: a mapping is expected")
    _check_depth(value, path, _DEEPEST)
    return value


def _check_depth(value: Any, path: Path, left: int) -> None:
    """YAML can name a table within itself."""
    if left == 0:
        raise InvalidArgument(f"{path}: the settings contain themselves, or more than {_DEEPEST} levels")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inner:
        _check_depth(item, path, left - 1)


def _read_values(system: System, values: Mapping[str, Any], given: Given) -> None:
    flat = dict(_flat(values, set(system.names))) if system.is_nested else dict(values)
    if classes := [name for name in flat if name.rpartition(".")[2] == "_target_"]:
        given.notes.append(f"_target_ names {len(classes)} classes, whose settings stand beside it")
        flat = {name: value for name, value in flat.items() if name not in classes}
    for name, value in flat.items():
        # Hydra's ${...} refer to other settings of the same file.
        resolved = _resolved(value, flat)
        is_known = isinstance(resolved, str) and system.presets is not None and system.presets.search(resolved)
        if isinstance(resolved, str) and "${" in resolved and not is_known:
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
    if isinstance(value, str) and (select := re.fullmatch(r"\$\{oc\.select:\s*([^,}]+?)\s*(?:,\s*([^{}]*))?\}", value)):
        others = {key: item for key, item in values.items() if values[key] != value}
        return _resolved(others[select[1]], others) if select[1] in others else _scalar(select[2] or "null")
    if isinstance(value, str):
        for key, item in values.items():
            if f"${{{key}}}" in value and not isinstance(item, Mapping | list):
                value = value.replace(f"${{{key}}}", str(item))
    return value
