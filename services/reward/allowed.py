"""The code and keys that runs may use on this reward service.

The service's operator decides on these lists, not the configuration of a run. Without them, anyone who may start a run
could load any file and function on the service's machine, and send any variable of its environment to their own server.
"""

import argparse
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from shoal.config.tables.custom_verifiers import ENTRY_POINT_GROUP, is_registered
from shoal.config.tables.endpoint import EndpointConfig
from shoal.config.tables.environments import UNBOUNDED_ENVIRONMENT, EnvironmentConfig
from shoal.config.tables.reward import RewardConfig
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition

_OPTIONS = (
    *("--allow-verifier-folder", "--allow-verifier-package", "--allow-api-key", "--allow-reward-server"),
    *("--allow-interpreter", "--allow-program", "--allow-variable", "--allow-remote-code"),
)
"""The options, in the order of the fields of `Allowed`."""
_FOLDER, _PACKAGE, _KEY, _SERVER, _INTERPRETER, _PROGRAM, _VARIABLE, _REMOTE_CODE = _OPTIONS


@dataclass(frozen=True)
class Allowed:
    """The code that verifiers, environments and a reward model may use, and the keys and the token that may be sent."""

    verifier_folders: tuple[Path, ...] = ()
    """Folders whose files, at any depth, may be custom verifiers and environments."""
    verifier_packages: tuple[str, ...] = ()
    """Packages and modules that may define custom verifiers (in addition to registered ones) and environments. A module
    that only imports a verifier does not define it (services/reward/custom/loading.py)."""
    api_keys: tuple[tuple[str, str], ...] = ()
    """Environment variables with keys, each with its allowed base URL; a longer path is allowed too."""
    reward_servers: tuple[str, ...] = ()
    """Addresses of servers that get this service's token. Other servers are asked without a token."""
    interpreters: tuple[str, ...] = ()
    """Executables that may run environments, in addition to the service's own."""
    programs: tuple[tuple[str, ...], ...] = ()
    """Programs that environments may start, each with its exact arguments, since other arguments may run any code."""
    variables: tuple[str, ...] = ()
    """Environment variables that programs of environments may get."""
    remote_code: tuple[str, ...] = ()
    """Reward models whose own code may run: a folder or hub name as in the run, with @ and the revision if the run has
    one. On a hub, anyone may propose a revision of a model."""

    def check(self, config: RewardConfig, environments: Sequence[EnvironmentConfig] = ()) -> None:
        """Raises `FailedPrecondition` with every field that asks for more than is allowed."""
        refused = [
            *self._refused_verifiers(config),
            *self._refused_environments(environments),
            *self._refused_keys(config),
            *self._refused_remote_code(config.model),
        ]
        if refused:
            lines = "".join(f"\n  {line}" for line in refused)
            raise FailedPrecondition(f"this reward service does not allow:{lines}", reason=ErrorReason.NOT_ALLOWED)

    def _refused_verifiers(self, config: RewardConfig) -> Iterator[str]:
        for name, table in config.custom.items():
            if table.file and not self._allows_file(table.file):
                yield self._in_no_folder(f"reward.custom.{name}.file", table.file)
            module = table.entry_point.partition(":")[0]
            if module and not (self._allows_module(module) or is_registered(table.entry_point)):
                yield (
                    f"reward.custom.{name}.entry_point: {module} is in no package that {_PACKAGE} allows "
                    f"(allowed: {_listed(self.verifier_packages)}): start the service with {_PACKAGE} "
                    f"{module.partition('.')[0]}, or register the function in the group {ENTRY_POINT_GROUP}"
                )

    def _refused_environments(self, environments: Sequence[EnvironmentConfig]) -> Iterator[str]:
        for table in environments:
            field = f"environments.{table.name}"
            if table.file and not self._allows_file(table.file):
                yield self._in_no_folder(f"{field}.source", table.file)
            if table.module and not self._allows_module(table.module):
                yield (
                    f"{field}.source: {table.module} is in no package that {_PACKAGE} allows "
                    f"(allowed: {_listed(self.verifier_packages)}): start the service with {_PACKAGE} "
                    f"{table.module.partition('.')[0]}"
                )
            if table.interpreter and table.interpreter not in self.interpreters:
                yield _is_none_of(f"{field}.interpreter", _INTERPRETER, self.interpreters, table.interpreter)
            for place, source, settings in table.parts:
                yield from self._refused_settings(f"{field}.{place}", source, settings)

    def _refused_settings(self, field: str, source: str, settings: Mapping[str, Any]) -> Iterator[str]:
        """Lists the refused settings of an environment that comes with Shoal."""
        if name := settings.get("api_key_env"):
            yield from self._refused_key(field, name, settings.get("base_url") or settings.get("url") or "")
        command = settings.get("command")
        if command and tuple(command) not in self.programs:
            yield _is_none_of(f"{field}.command", _PROGRAM, list(map(shlex.join, self.programs)), shlex.join(command))
        if refused := sorted({*settings.get("variables", ())} - {*self.variables}):
            yield _is_none_of(f"{field}.variables", _VARIABLE, self.variables, refused[0])
        if (words := settings.get("words_file")) and not self._allows_file(str(words)):
            yield self._in_no_folder(f"{field}.words_file", str(words))
        if source == UNBOUNDED_ENVIRONMENT and not self._allows_module(source):
            yield (
                f"{field}: the settings of {source} may name any package, program and key: to allow all of these, "
                f"start the service with {_PACKAGE} {source}"
            )

    def _in_no_folder(self, field: str, file: str) -> str:
        return (
            f"{field}: {file} is in no folder that {_FOLDER} allows (allowed: {_listed(self.verifier_folders)}): move "
            f"the file to an allowed folder, or start the service with {_FOLDER} {Path(file).parent}"
        )

    def _allows_file(self, file: str) -> bool:
        # Resolve the paths, so that neither ".." nor a link leads out of a folder.
        try:
            path = Path(file).expanduser().resolve()
        except (OSError, RuntimeError, ValueError):  # An unknown user after "~", a loop of links, a null character.
            return False
        return any(path.is_relative_to(folder.expanduser().resolve()) for folder in self.verifier_folders)

    def _allows_module(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{package}.") for package in self.verifier_packages)

    def _refused_keys(self, config: RewardConfig) -> Iterator[str]:
        endpoints: dict[str, EndpointConfig] = {"reward.judge": config.judge, "reward.model": config.model}
        for section, endpoint in endpoints.items():
            if endpoint.api_key_env:
                yield from self._refused_key(section, endpoint.api_key_env, endpoint.base_url)

    def _refused_key(self, section: str, name: Any, url: Any) -> Iterator[str]:
        if not any(name == key and _is_below(str(url), base) for key, base in self.api_keys):
            # Do not repeat the name: it may be a key, given by mistake.
            yield (
                f"{section}.api_key_env: this variable may not be sent to {url}: start the service with {_KEY} "
                f"NAME=URL (allowed: {_listed([f'{key}={base}' for key, base in self.api_keys])})"
            )

    def _refused_remote_code(self, model: RewardModelConfig) -> Iterator[str]:
        if (code := model.remote_code) and code not in self.remote_code:
            yield _is_none_of("reward.model.trust_remote_code", _REMOTE_CODE, self.remote_code, code)


def _is_none_of(field: str, option: str, allowed: Sequence[str], value: str) -> str:
    return (
        f"{field}: {value} is not allowed by {option} (allowed: {_listed(allowed)}): start the service with {option} "
        f"{shlex.quote(value)}"
    )


def _is_below(url: str, base: str) -> bool:
    """Returns whether a URL has the scheme, host and port of `base`, and a path at or below the path of `base`."""
    given, allowed = urlsplit(url), urlsplit(base)
    within = f"{given.path.rstrip('/')}/".startswith(f"{allowed.path.rstrip('/')}/")
    # A server may read "%2e%2e" as "..", and a backslash as a slash.
    parts = unquote(given.path).replace("\\", "/").split("/")
    return _server(given) == _server(allowed) and within and ".." not in parts


def _server(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def add_allowed_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Each may be repeated, and adds to the values of its environment variable."""
    group = parser.add_argument_group("what runs may use")

    def add(option: str, metavar: str, text: str, kind: Callable[[str], object] = str, *, lines: bool = False) -> None:
        variable = f"SHOAL_{option.removeprefix('--').replace('-', '_').upper()}"
        values = os.environ.get(variable, "")
        listed = [line for line in values.splitlines() if line.strip()] if lines else values.split()
        how = f"{variable}, {'one a line' if lines else 'separated by spaces'}"
        try:
            default = [kind(value) for value in listed]
        except argparse.ArgumentTypeError as error:
            parser.error(f"{variable}: {error}")
        group.add_argument(option, metavar=metavar, type=kind, action="append", default=default, help=f"{text} [{how}]")

    add(_FOLDER, "FOLDER", "folder whose Python files may be custom verifiers and environments", Path)
    add(
        _PACKAGE,
        "NAME",
        "installed package whose functions may be custom verifiers and whose classes may be environments; functions "
        f"that a package registers in {ENTRY_POINT_GROUP} are always allowed",
    )
    add(
        _KEY,
        "NAME=URL",
        "environment variable that an api_key_env may name, with the URL at or below which its key may be sent",
        _key_and_url,
    )
    add(
        _SERVER,
        "HOST:PORT",
        "address of reward.servers or environments that gets this service's token; others are asked without one",
    )
    add(_INTERPRETER, "PATH", "Python executable that environments may run in, besides the service's own")
    add(
        _PROGRAM,
        "COMMAND",
        "program that `mcp` may start, with exactly these arguments, quoted as in a shell",
        _command,
        lines=True,
    )
    add(_VARIABLE, "NAME", "environment variable that programs of `mcp` may get")
    add(
        _REMOTE_CODE,
        "MODEL",
        "folder or hub name of a reward model whose own code may run, with @REVISION if the run names a revision",
    )


def allowed_by(namespace: argparse.Namespace) -> Allowed:
    """Returns the parsed options."""
    return Allowed(*(tuple(getattr(namespace, option.lstrip("-").replace("-", "_"))) for option in _OPTIONS))


def _command(text: str) -> tuple[str, ...]:
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{_PROGRAM} {text}: {error}") from None
    if not command:
        raise argparse.ArgumentTypeError(f"{_PROGRAM} must be a program with its arguments")
    return command


def _key_and_url(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    try:
        scheme, host, _ = _server(urlsplit(url))
    except ValueError:  # Its text, which argparse would show, may contain the key.
        scheme, host = "", None
    if not (equals and name.isidentifier() and scheme in ("http", "https") and host):
        # Do not repeat the text: it may contain a key by mistake.
        raise argparse.ArgumentTypeError(
            f"{_KEY} must be the name of a variable and a URL, such as JUDGE_KEY=https://api.example.com/v1"
        )
    return name, url
