"""Environments that episodes are played in: the tables `[[environments]]`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.custom_verifiers import ADDRESS, NAME, OBJECT
from shoal.config.tables.section import Section

BUILT_IN_ENVIRONMENTS = frozenset(
    {
        "browse",
        "calculator",
        "counter",
        "guess_number",
        "mcp",
        "openenv",
        "python",
        "reasoning_gym",
        "sandbox",
        "search",
        "textarena",
        "toolbox",
        "verifiers",
        "wordle",
    }
)
"""Names of the environments that come with Shoal (services/reward/environments/builtin)."""

UNBOUNDED_ENVIRONMENT = "verifiers"
"""The built-in environment whose settings may name any installed code."""

_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)", re.DOTALL)


class EnvironmentConfig(Section):
    """An environment that the data may name (docs/environments.md)."""

    name: str
    """Name of the environment in the data: 1 to 63 characters of a-z, 0-9, "_" and "-"."""
    source: str = ""
    """The code: the name of an environment that comes with Shoal, "file.py:Class", or "package.module:Class". A list of
    functions, the tools, may take the place of the class. A relative path in a TOML file is relative to the folder of
    the TOML file; a relative path given with `--set` is relative to the current folder. By default the source is the
    environment named `name` that comes with Shoal."""
    server: str = ""
    """In place of `source`: host:port of a server that offers `shoal.v1.EnvironmentService` and has an environment
    named `name`. The reward service must reach the server at this address."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment's class."""
    interpreter: str = ""
    """Absolute path of the Python executable that runs the code. Needs Python 3.11 or later, and no packages of Shoal.
    By default the interpreter of the reward service runs the code."""
    episodes_per_process: int = Field(default=16, ge=1)
    """Maximum number of episodes that share a process. With 1 each episode gets a new process."""
    max_episodes: int = Field(default=256, ge=1)
    """Maximum number of episodes that one reward service has open at once. Further episodes are refused with
    RESOURCE_EXHAUSTED, and begin when others have ended."""
    max_observation_chars: int = Field(default=65_536, ge=64, le=500_000)
    """Maximum number of characters that the environment says to one turn. The middle of a longer text is cut out, with
    a note in its place."""
    max_memory_gib: float = Field(default=4.0, ge=0.25, le=1_048_576)
    """Address space that each process may have, in GiB."""
    reload: bool = False
    """Use the new code when the file changes, for episodes that begin after the change. A new version that does not
    work, or that lacks a tool of the former version, is not used. `shoal run resume` always reads the code again."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        lower = name.lower()
        if not NAME.fullmatch(lower):
            raise ValueError("use 1 to 63 characters of a-z, 0-9, '_' and '-'")
        return lower

    @field_validator("server")
    @classmethod
    def _is_host_and_port(cls, server: str) -> str:
        if server and not ADDRESS.fullmatch(server):
            raise ValueError("must be host:port, for example 10.0.0.7:7003")
        if server and not 1 <= int(server.rpartition(":")[2]) <= 65_535:
            raise ValueError("must have a port from 1 to 65535, for example 10.0.0.7:7003")
        return server

    @field_validator("interpreter")
    @classmethod
    def _is_absolute(cls, interpreter: str) -> str:
        if interpreter and not Path(interpreter).is_absolute():
            raise ValueError("must be an absolute path, for example /opt/games/bin/python")
        return interpreter

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.server:
            for field in ("source", "settings", "interpreter", "reload"):
                if getattr(self, field):
                    raise ValueError(f"give server or {field}, not both: the server decides what it runs")
            return self
        if not self.source and self.name not in BUILT_IN_ENVIRONMENTS:
            raise ValueError(f"give source or server: no built-in environment is named {self.name!r}; {_listed()}")
        source = self.code
        if not (source in BUILT_IN_ENVIRONMENTS or _FILE.fullmatch(source) or OBJECT.fullmatch(source)):
            hint = f'add the class, as in "{source}:MyEnvironment"; ' if source.endswith(".py") else ""
            raise ValueError(
                f'source must be "file.py:Class", "package.module:Class", or built in (given: {source!r:.200}); '
                f"{hint}{_listed()}"
            )
        if self.file and not self.file.startswith("~") and not Path(self.file).is_absolute():
            raise ValueError("source must have an absolute path, because there is no configuration file to start from")
        if self.reload and not self.file:
            raise ValueError("reload watches a file, but source names no file: remove reload")
        for place, _, settings in self.parts:
            _check_address(place, settings)
            _check_program(place, settings)
        return self

    @property
    def code(self) -> str:
        """The code of the environment: `source`, or `name` by default."""
        return self.source or self.name

    @property
    def file(self) -> str:
        """The Python file of the environment's code. Empty if the code is not in a file."""
        match = _FILE.fullmatch(self.code)
        return match[1] if match else ""

    @property
    def module(self) -> str:
        """The module of an installed package that has the code; empty if it is in a file or comes with Shoal."""
        return "" if self.server or self.file or self.code in BUILT_IN_ENVIRONMENTS else self.code.partition(":")[0]

    @property
    def parts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The built-in environments as (place of the settings, name, settings). Only a `toolbox` has several."""
        if self.code not in BUILT_IN_ENVIRONMENTS:
            return []
        if self.code != "toolbox":
            return [("settings", self.code, self.settings)]
        tables = self.settings.get("tools")
        numbered = enumerate(tables if isinstance(tables, list) else ())
        places = [(f"settings.tools[{number}]", table) for number, table in numbered]
        places.append(("settings.environment", self.settings.get("environment")))
        return [(place, str(table.get("source")), table) for place, table in places if isinstance(table, dict)]

    @property
    def object_name(self) -> str:
        """Name of the class, or of the list of functions, in the file or module."""
        return self.code.rpartition(":")[2]


def _check_address(place: str, settings: Mapping[str, Any]) -> None:
    """Raises `ValueError` for secrets in settings, which are stored with the run. No message repeats a secret."""
    key = settings.get("api_key_env", "")
    if not isinstance(key, str) or not re.fullmatch(r"([A-Za-z_][A-Za-z_0-9]*)?", key):
        raise ValueError(f"{place}.api_key_env must be the name of an environment variable, not the key")
    url = settings.get("base_url") or settings.get("url") or ""
    if not isinstance(url, str) or "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(f"the address in {place} must be a text without user name and password")
    if key and not url.startswith(("http://", "https://")):
        raise ValueError(
            f"{place} has an api_key_env, but no address to send the key to: give one with https:// or http://"
        )


def _check_program(place: str, settings: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a command, or for names of variables, that are not lists of texts. The code that allows
    commands and variables reads lists of texts."""
    for name in ("command", "variables"):
        value = settings.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ValueError(f"{place}.{name} must be a list of texts")


def _listed() -> str:
    return f"built in: {', '.join(sorted(BUILT_IN_ENVIRONMENTS))}"


def find_environment_files(values: Mapping[str, Any], folder: Path) -> None:
    """Makes the relative paths of `environments` absolute, in place: other machines do not know the folder."""
    tables = values.get("environments")
    if isinstance(tables, dict):  # Overrides, which name items by index.
        tables = [*tables.values()]
    for table in tables if isinstance(tables, list) else ():
        source = table.get("source") if isinstance(table, dict) else None
        if isinstance(source, str) and not source.startswith("~") and (match := _FILE.fullmatch(source)):
            table["source"] = f"{(folder / match[1]).absolute()}:{match[2]}"
