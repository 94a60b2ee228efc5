"""What a run may make this reward service do: the operator of the service decides, not the run's configuration.

A run names code to load and keys to send. Without these lists, whoever may start a run could load any file and any
function of the service's machine, and send any variable of its environment to a server of their own.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from shoal.config.custom_verifiers import ENTRY_POINT_GROUP, is_registered
from shoal.config.endpoint import EndpointConfig
from shoal.config.environments import EnvironmentConfig, program_of
from shoal.config.services import RewardConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition

_FOLDER, _PACKAGE, _KEY = "--allow-verifier-folder", "--allow-verifier-package", "--allow-api-key"
_SERVER, _INTERPRETER = "--allow-reward-server", "--allow-interpreter"


@dataclass(frozen=True)
class Allowed:
    """The code that custom verifiers and environments may come from, and the keys and the token that may be sent."""

    verifier_folders: tuple[Path, ...] = ()
    """Folders whose files, also those in folders below, may be custom verifiers and environments."""
    verifier_packages: tuple[str, ...] = ()
    """Packages and modules whose functions may be custom verifiers, besides those that register themselves, and whose
    classes environments. They must define them: what imports them checks it (services/reward/custom/loading.py)."""
    api_keys: tuple[tuple[str, str], ...] = ()
    """Environment variables with keys, each with the base URL that it may be sent to; a longer path is allowed too."""
    reward_servers: tuple[str, ...] = ()
    """Addresses of servers that get this service's token. Others are asked without it."""
    interpreters: tuple[str, ...] = ()
    """Executables that may run environments, besides the service's own, and programs that they may start."""

    def check(self, config: RewardConfig, environments: Sequence[EnvironmentConfig] = ()) -> None:
        """Raises `FailedPrecondition` that names every field that asks for more than is allowed."""
        refused = [
            *self._refused_verifiers(config),
            *self._refused_environments(environments),
            *self._refused_keys(config),
        ]
        if refused:
            lines = "".join(f"\n  {line}" for line in refused)
            raise FailedPrecondition(f"this reward service does not allow:{lines}", reason=ErrorReason.NOT_ALLOWED)

    def _refused_verifiers(self, config: RewardConfig) -> Iterator[str]:
        for name, table in config.custom.items():
            if table.file and not self._allows_file(table.file):
                yield (
                    f"reward.custom.{name}.file: {table.file} is in no folder of {_FOLDER} "
                    f"({_listed(self.verifier_folders)}): move it there, or start the service with {_FOLDER} "
                    f"{Path(table.file).parent}"
                )
            if table.entry_point and not self._allows_entry_point(table.entry_point):
                module = table.entry_point.partition(":")[0]
                yield (
                    f"reward.custom.{name}.entry_point: {module} is in no package of {_PACKAGE} "
                    f"({_listed(self.verifier_packages)}): start the service with {_PACKAGE} "
                    f"{module.partition('.')[0]}, or register the function in the group {ENTRY_POINT_GROUP}"
                )

    def _refused_environments(self, environments: Sequence[EnvironmentConfig]) -> Iterator[str]:
        for table in environments:
            field = f"environments.{table.name}"
            if table.file and not self._allows_file(table.file):
                yield (
                    f"{field}.source: {table.file} is in no folder of {_FOLDER} ({_listed(self.verifier_folders)}): "
                    f"move it there, or start the service with {_FOLDER} {Path(table.file).parent}"
                )
            if table.module and not self._allows_module(table.module):
                yield (
                    f"{field}.source: {table.module} is in no package of {_PACKAGE} "
                    f"({_listed(self.verifier_packages)}): start the service with {_PACKAGE} "
                    f"{table.module.partition('.')[0]}"
                )
            if table.interpreter and table.interpreter not in self.interpreters:
                yield (
                    f"{field}.interpreter: {table.interpreter} is none of {_INTERPRETER} "
                    f"({_listed(self.interpreters)}): start the service with {_INTERPRETER} {table.interpreter}"
                )
            for place, settings in table.parts:
                yield from self._refused_settings(f"{field}.{place}", settings)

    def _refused_settings(self, field: str, settings: Mapping[str, Any]) -> Iterator[str]:
        """Lists keys that settings would send where they may not go, and programs that may not be started."""
        if name := settings.get("api_key_env"):
            yield from self._refused_key(field, name, settings.get("base_url") or settings.get("url") or "")
        program = program_of(settings)
        if program and program not in self.interpreters:
            yield (
                f"{field}.command: {program} is none of {_INTERPRETER} ({_listed(self.interpreters)}): start the "
                f"service with {_INTERPRETER} {program}"
            )

    def _allows_file(self, file: str) -> bool:
        # Resolved: neither ".." nor a link leads out of a folder.
        try:
            path = Path(file).expanduser().resolve()
        except (OSError, RuntimeError, ValueError):  # No such user after "~", a loop of links, or a null character.
            return False
        return any(path.is_relative_to(folder.expanduser().resolve()) for folder in self.verifier_folders)

    def _allows_entry_point(self, entry_point: str) -> bool:
        return self._allows_module(entry_point.partition(":")[0]) or is_registered(entry_point)

    def _allows_module(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{package}.") for package in self.verifier_packages)

    def _refused_keys(self, config: RewardConfig) -> Iterator[str]:
        endpoints: dict[str, EndpointConfig] = {"reward.judge": config.judge, "reward.model": config.model}
        for section, endpoint in endpoints.items():
            if endpoint.api_key_env:
                yield from self._refused_key(section, endpoint.api_key_env, endpoint.base_url)

    def _refused_key(self, section: str, name: Any, url: Any) -> Iterator[str]:
        if not any(name == key and _is_below(str(url), base) for key, base in self.api_keys):
            # The message does not repeat the name: it may be a key, given by mistake.
            yield (
                f"{section}.api_key_env: that variable may not be sent to {url}; start the service with {_KEY} "
                f"NAME=URL for it (allowed: {_listed([f'{key}={base}' for key, base in self.api_keys])})"
            )


def _is_below(url: str, base: str) -> bool:
    """Whether a URL has the scheme, host and port of another one, and a path at or below its path."""
    given, allowed = urlsplit(url), urlsplit(base)
    within = f"{given.path.rstrip('/')}/".startswith(f"{allowed.path.rstrip('/')}/")
    # A server may read "%2e%2e" as "..", and a backslash as a slash.
    parts = unquote(given.path).replace("\\", "/").split("/")
    return _server(given) == _server(allowed) and within and ".." not in parts


def _server(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "there is none"


def add_allowed_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Each may be repeated, and adds to the values of its environment variable."""
    group = parser.add_argument_group("what runs may use")
    group.add_argument(
        _FOLDER,
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[Path(value) for value in _from_environment("SHOAL_ALLOW_VERIFIER_FOLDER")],
        help="folder whose Python files may be custom verifiers and environments [SHOAL_ALLOW_VERIFIER_FOLDER, "
        "separated by spaces]",
    )
    group.add_argument(
        _PACKAGE,
        metavar="NAME",
        action="append",
        default=_from_environment("SHOAL_ALLOW_VERIFIER_PACKAGE"),
        help="installed package whose functions may be custom verifiers, and whose classes environments; functions "
        "that a package registers in "
        f"{ENTRY_POINT_GROUP} always may [SHOAL_ALLOW_VERIFIER_PACKAGE]",
    )
    group.add_argument(
        _KEY,
        metavar="NAME=URL",
        type=_key_and_url,
        action="append",
        default=[_key_and_url(value) for value in _from_environment("SHOAL_ALLOW_API_KEY")],
        help="environment variable whose key may be sent to servers at URL or below, as reward.judge.api_key_env and "
        "reward.model.api_key_env [SHOAL_ALLOW_API_KEY]",
    )
    group.add_argument(
        _SERVER,
        metavar="HOST:PORT",
        action="append",
        default=_from_environment("SHOAL_ALLOW_REWARD_SERVER"),
        help="address of reward.servers or environments that gets this service's token; others are asked without one "
        "[SHOAL_ALLOW_REWARD_SERVER]",
    )
    group.add_argument(
        _INTERPRETER,
        metavar="PATH",
        action="append",
        default=_from_environment("SHOAL_ALLOW_INTERPRETER"),
        help="Python executable that environments may run in, besides the service's own, and program that `mcp` may "
        "start [SHOAL_ALLOW_INTERPRETER]",
    )


def allowed_by(namespace: argparse.Namespace) -> Allowed:
    """Returns the parsed options."""
    return Allowed(
        tuple(namespace.allow_verifier_folder),
        tuple(namespace.allow_verifier_package),
        tuple(namespace.allow_api_key),
        tuple(namespace.allow_reward_server),
        tuple(namespace.allow_interpreter),
    )


def _from_environment(name: str) -> list[str]:
    return os.environ.get(name, "").split()


def _key_and_url(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    try:
        scheme, host, _ = _server(urlsplit(url))
    except ValueError:  # Its text, which argparse would show, may hold the key.
        scheme, host = "", None
    if not (equals and name.isidentifier() and scheme in ("http", "https") and host):
        # The message does not repeat the text, which may hold a key by mistake.
        raise argparse.ArgumentTypeError(
            f"{_KEY} must be the name of a variable and a URL, such as JUDGE_KEY=https://api.example.com/v1"
        )
    return name, url
