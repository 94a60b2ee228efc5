"""Reads the settings of another system from scripts, flags, YAML, JSON, Python or notebooks."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.parsing import parse_json, parse_yaml
from shoal.paths import why_unread
from shoal.translate.shared.system import System
from shoal.translate.sources.interpolation import References, scalar
from shoal.translate.sources.launch import read_flags, read_launch
from shoal.translate.sources.python import notebook_code, read_calls
from shoal.translate.sources.script import Word
from shoal.translate.sources.settings import Settings


def read_settings(system: System, arguments: Sequence[str]) -> Settings:
    """Reads a file, flags, or a file and flags that override it. Raises `InvalidArgument` if it cannot be read."""
    rest, settings = list(arguments), Settings()
    try:
        if rest and Path(rest[0]).suffix in (".sh", ".bash", ".yaml", ".yml", ".json", ".py", ".ipynb"):
            _read_file(system, Path(rest.pop(0)), settings)
        if rest:
            _read_words(system, [Word(text) for text in rest], settings)
    except RecursionError:
        raise InvalidArgument("the source is nested too deeply to be read, or refers to itself") from None
    return settings


def _read_file(system: System, path: Path, settings: Settings) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {why_unread(error)}") from None
    if path.suffix in (".sh", ".bash"):
        _read_script(system, text, path, settings)
    elif path.suffix in (".py", ".ipynb"):
        read_calls(system, notebook_code(text, path) if path.suffix == ".ipynb" else text, path, settings)
    else:
        _read_values(system, _parsed(text, path), settings)


def _read_script(system: System, text: str, path: Path, settings: Settings) -> None:
    if not system.programs:
        raise InvalidArgument(f"{path}: {system.name} is not configured by scripts; give YAML, JSON or Python")
    launch = read_launch(text, system.programs, path=path)
    if flags := [word.partition("=")[0] for word in launch.launcher if word.startswith("--") and len(word) > 2]:
        settings.notes.append(
            f"flags of the launcher are left out ({', '.join(dict.fromkeys(flags))}): the deployment decides where "
            "processes run; `shoal train` starts all of them on one machine"
        )
    if "program" in system.rows:
        settings.take({"program": launch.program})
    if "num_processes" in system.rows and (processes := _processes(launch.launcher)):
        settings.take({"num_processes": processes})
    settings.take({name: value for name in system.environment if (value := launch.variables.get(name))})
    settings.notes += launch.notes
    if exported := [name for name in launch.exported if name not in system.environment]:
        settings.notes.append(
            f"environment variables are left out ({', '.join(exported)}): settings of Shoal replace what {system.name} "
            "reads from them; services inherit the variables of the shell that starts them"
        )
    for guess in launch.guesses:
        settings.notes.append(f"{guess} depends on a test that only a run of the script could decide: check the value")
    if "mock_data" in launch.program:
        settings.notes.append(f"{launch.program} trains on random data; Shoal trains on the data in the settings")
    if system.trainer and Path(launch.program).suffix == ".py":
        _read_program(system, launch.program, path, settings)
    elif launch.program.endswith("grpo.py"):
        settings.notes.append(
            "grpo.py trains with OLMo-core and FSDP; Shoal's learner uses DeepSpeed (learner.zero_stage) and the "
            "learning rate schedules of grpo_fast.py, whose cosine ends at 0"
        )
    words = list(launch.arguments)
    # A program may take a file of settings before its flags.
    if words and Path(words[0].text).suffix in (".yaml", ".yml", ".json"):
        inner = Path(words.pop(0).text)
        _read_file(system, inner if inner.is_file() else path.parent / inner, settings)
    _read_words(system, words, settings, folder=path.parent)


def _read_program(system: System, program: str, path: Path, settings: Settings) -> None:
    """Reads the settings in the file that the launch script starts, if this file is near the launch script."""
    if found := _near(program, path.parent):
        _read_file(system, found, settings)
    elif not re.search(r"(^|/)trl/scripts/grpo\.py$", program):
        settings.notes.append(
            f"{program} is not in the folder of {path.name} or above it, so its own reward functions, tools and "
            f"settings are missing: translate {program} itself, with these flags after it"
        )


def _near(name: str, folder: Path) -> Path | None:
    return next((at / name for at in (folder, *folder.parents) if (at / name).is_file()), None)


def _processes(launcher: Sequence[str]) -> str | None:
    """Returns the number of processes that accelerate or torchrun must start."""
    for index, word in enumerate(launcher):
        name, equals, value = word.lstrip("-").replace("-", "_").partition("=")
        if word.startswith("--") and name in ("num_processes", "nproc_per_node"):
            return value if equals else next(iter(launcher[index + 1 :]), None)
    return None


def _read_words(system: System, words: Sequence[Word], settings: Settings, *, folder: Path | None = None) -> None:
    if system.is_nested:
        _read_overrides(system, words, settings)
        return
    flags = read_flags(words, known=list(system.rows), flags=system.flags)
    if "config" not in system.rows and isinstance(config := flags.values.pop("config", None), str):
        # The parsers of TRL and accelerate read the file first, wherever it is among the flags.
        _read_file(system, (folder and _near(config, folder)) or Path(config), settings)
    bare = [name for name, value in flags.values.items() if value is True and name in system.valued]
    settings.take({name: value for name, value in flags.values.items() if name not in bare})
    settings.notes += flags.notes
    for name, reason in (dict.fromkeys(bare, "has no value: the flag needs one") | flags.unset).items():
        settings.miss(name, reason)


def _read_overrides(system: System, words: Sequence[Word], settings: Settings) -> None:
    texts = iter(words)
    for word in texts:
        if not word.text:
            continue
        name, equals, value = word.text.lstrip("+").partition("=")
        if name.startswith("~"):
            _delete(system, name[1:], settings)
        elif name in ("--config-path", "--config-dir", "--config-name", "-cp", "-cd", "-cn"):
            value = value if equals else next((other.text for other in texts), "")
            if name in ("--config-name", "-cn") and not re.fullmatch(r"(ppo|dapo)(_\w+)?_trainer(\.yaml)?", value):
                reason = f"names a file of defaults, {value}: translate that file, with these overrides after it"
                settings.unset[name] = reason
            else:
                settings.notes.append(f"{name} = {value}: the defaults are those of verl's own ppo_trainer.yaml")
        elif not equals:
            raise InvalidArgument(
                f"{word.text!r} is neither an override of the form a.b=c nor a file (.sh, .yaml, .json, .py, .ipynb)"
            )
        elif word.unknown and not value:
            table = _table_around(system, name, settings)
            inside = f" for {name.removeprefix(f'{table}.')}" if table else ""
            reason = f"has no value{inside}: the script uses {', '.join(word.unknown)}, which it does not set"
            settings.miss(table or name, reason)
        else:
            if word.unknown:
                settings.notes.append(f"{name}: {', '.join(word.unknown)} is not set by the script, so it is empty")
            for inner, item in _flat({name: scalar(value)}, system.wholes):
                _assign(system, inner, item, settings)


def _delete(system: System, name: str, settings: Settings) -> None:
    table = _table_around(system, name, settings)
    before = settings.values.get(table) if table else None
    if table and isinstance(before, Mapping):
        settings.take({table: _without(before, name.removeprefix(f"{table}.").split("."))})
    else:
        settings.miss(name, "is deleted from the defaults; give the value that it should have")


def _assign(system: System, name: str, value: Any, settings: Settings) -> None:
    table = _table_around(system, name, settings)
    if table is None:
        settings.take({name: value})
    elif table not in settings.unset:  # Otherwise the value of another key is missing, and stays missing.
        before = settings.values.get(table)
        whole = before if isinstance(before, Mapping) else {}
        settings.take({table: _with(whole, name.removeprefix(f"{table}.").split("."), value)})


def _table_around(system: System, name: str, settings: Settings) -> str | None:
    """Returns the field that is kept as a whole table and contains the named setting; None if there is none."""
    kept = (field for field in system.wholes if isinstance(settings.values.get(field), Mapping))
    return next((table for table in (*system.tables, *kept) if name.startswith(f"{table}.")), None)


def _with(table: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Returns a table with a value below these keys, one table for each but the last."""
    key, *below = keys
    inner = table.get(key)
    return {**table, key: _with(inner if isinstance(inner, Mapping) else {}, below, value) if below else value}


def _without(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Returns a table without the value below these keys."""
    key, *below = keys
    inner = table.get(key)
    if below:
        return {**table, key: _without(inner, below)} if isinstance(inner, Mapping) else dict(table)
    return {name: value for name, value in table.items() if name != key}


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    except ValueError as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{path} contains no settings: a mapping is expected")
    return value


def _read_values(system: System, values: Mapping[str, Any], settings: Settings) -> None:
    references = References(values)
    whole = references.resolved(values)
    flat = dict(_flat(whole, system.wholes)) if system.is_nested else dict(whole)
    if classes := [name for name in flat if name.rpartition(".")[2] == "_target_"]:
        settings.notes.append(f"_target_ names {len(classes)} classes, which Shoal does not use")
        flat = {name: value for name, value in flat.items() if name not in classes}
    for name, value in flat.items():
        is_preset = isinstance(value, str) and system.presets is not None and system.presets.search(value)
        if name in references.names and not system.knows(name):
            settings.notes.append(f"{name} is a variable of the file: its value is used where others refer to it")
        elif not is_preset and (undefined := _undefined(value)):
            settings.unset[name] = f"has no value: the file does not define {undefined}"
        else:
            settings.take({name: value})


def _undefined(value: Any) -> str | None:
    """Returns a text in a value, or in a table of values, with a reference that could not be resolved."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_undefined, value.values())), None)
    return value if isinstance(value, str) and "${" in value else None


def _flat(values: Mapping[str, Any], wholes: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flattens nested mappings into dotted names, except the mappings of `wholes`."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in wholes:
            yield from _flat(value, wholes, f"{name}.")
        else:
            yield name, value
