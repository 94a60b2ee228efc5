"""Requests to `python -m services.reward.environments.offline`, and to servers of environments.

The command line may not import a service, since each service has its own dependencies.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from google.protobuf.json_format import ParseDict

from shoal.config import RunConfig, dump_config, load_config, parse_config
from shoal.config.load import apply_override
from shoal.config.tables.environments import BUILT_IN_ENVIRONMENTS, EnvironmentConfig, find_environment_files
from shoal.conversation import ToolDefinition
from shoal.errors import FieldViolation, InvalidArgument, PermissionDenied, ShoalError, Unauthenticated
from shoal.parsing import parse_json, unique_keys
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.channel import connect
from shoal.v1 import environment_pb2 as pb
from shoal.v1.environment_pb2_grpc import EnvironmentServiceStub
from shoal.wire.conversations import tool_from_wire

if TYPE_CHECKING:
    from shoal.v1.environment_pb2_grpc import EnvironmentServiceAsyncStub

_MODULE = "services.reward.environments.offline"
_SERVICE = "shoal.v1.EnvironmentService"
_LIST_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 10.0
_UNREAD: dict[str, Any] = {"model": {"path": "unused"}, "data": {"sources": [{"path": "unused"}]}}
"""Required fields that environments do not read."""


class Origin(StrEnum):
    """The origin of a listed environment."""

    SERVER = "server"
    CONFIGURATION = "configuration"
    SHOAL = "shoal"


@dataclass(frozen=True)
class Origins:
    """The options that decide which environments there are.

    Raises `InvalidArgument` if the options name both a server and a configuration.
    """

    config_file: Path | None
    overrides: Sequence[str]
    address: str
    """The server's address; empty for a process here."""

    def __post_init__(self) -> None:
        if self.address and (self.config_file is not None or self.overrides):
            raise InvalidArgument(
                "--config and --set name environments that are started here: leave them out, or leave out --address, "
                "which names a server that has its own environments"
            )

    def config(self) -> RunConfig:
        """Loads the configuration of the file with the overrides, or of the overrides alone."""
        if self.config_file is not None:
            return load_config(self.config_file, self.overrides)
        values: dict[str, Any] = dict(_UNREAD)
        for override in self.overrides:
            apply_override(values, override)
        find_environment_files(values, Path.cwd())
        return parse_config(values)


@dataclass(frozen=True)
class Game:
    """The options that decide what is played."""

    name: str
    """The name of an environment, or its code."""
    task: str
    """The task, as JSON."""
    tools: str
    """Names of the tools that are offered, as JSON; empty for all."""
    seed: int
    settings: str
    """The settings, as JSON, which replace settings of the same names in a configuration."""
    interpreter: str
    """The Python interpreter that replaces the configured one; empty keeps the configured interpreter."""


def listed(origins: Origins) -> list[tuple[Origin, pb.EnvironmentInfo]]:
    """Describes the environments of a server, or of a new process: first the configuration's, then Shoal's own."""
    configured, address = origins.config(), origins.address
    config = with_built_in(configured)

    async def ask(server: str) -> list[pb.EnvironmentInfo]:
        async with stub_of(server) as stub:
            return await environments_of(stub)

    with server_of(config, address) as server:
        infos = asyncio.run(ask(server))
    if address:
        return [(Origin.SERVER, info) for info in infos]
    names = {environment.name for environment in configured.environments}
    found = [(Origin.CONFIGURATION if info.name in names else Origin.SHOAL, info) for info in infos]
    return sorted(found, key=lambda one: one[0] is Origin.SHOAL)


def checked(game: Game, texts: Sequence[str]) -> dict[str, Any]:
    """Checks an environment with the texts of the policy's turns, and returns the findings."""
    table = {
        "name": "checked", "source": game.name, "settings": json_object(game.settings, "--settings"),
        "interpreter": game.interpreter, "episodes_per_process": 4,
    }  # fmt: skip
    request = {
        "config": dump_config(alone(table)),
        "task": json_object(game.task, "--task"),
        "tools": tool_names(game.tools),
        "seed": game.seed,
        "texts": list(texts),
    }
    found: dict[str, Any] = _answer("check", request)
    return found


def check_environments(config: RunConfig) -> dict[str, list[ToolDefinition] | str]:
    """Loads the environments of a configuration on this machine, except those of servers.

    Returns the tools of each environment by name, or why the environment cannot work here. If an environment has no
    code, or does not take its settings, the reward service's code prints the reason, and this function exits.
    """
    environments = [environment for environment in config.environments if not environment.server]
    if not environments:
        return {}
    request = {"config": dump_config(config.model_copy(update={"environments": environments}))}
    tools: dict[str, list[dict[str, Any]] | str] = _answer("load", request)
    return {
        name: tables
        if isinstance(tables, str)
        else [tool_from_wire(ParseDict(table, pb.ToolDefinition())) for table in tables]
        for name, tables in tools.items()
    }


def check_environments_here(config: RunConfig) -> None:
    """Loads the environments with `check_environments`, for a run that plays on this machine.

    Raises `InvalidArgument` if a source names an environment that cannot work here.
    """
    named = {source.environment for source in (*config.data.sources, *config.evaluation.sources)}
    for name, found in check_environments(config).items():
        if isinstance(found, str) and name in named:
            raise InvalidArgument(f"environments.{name}: it cannot work on this machine: {found}")


def ask_environment_servers(config: RunConfig) -> dict[str, list[ToolDefinition] | str]:
    """Asks the servers of a configuration for their environments, once.

    Returns the tools of each environment by name, or why the tools are unknown or the environment cannot work there.
    Raises `InvalidArgument` for a server that does not answer, or lacks the environment.
    """

    async def ask() -> dict[str, list[ToolDefinition] | str]:
        served = [environment for environment in config.environments if environment.server]
        found = await asyncio.gather(*map(_tools_at_server, served))
        return dict(zip((environment.name for environment in served), found, strict=True))

    return asyncio.run(ask())


async def _tools_at_server(config: EnvironmentConfig) -> list[ToolDefinition] | str:
    # Never send a token of this environment to an address from a configuration.
    folder, field = os.environ.get("SHOAL_TLS_DIR"), f"environments.{config.name}.server"
    credentials = Credentials(TlsFolder(Path(folder)) if folder else None)
    try:
        async with connect(config.server, _SERVICE, credentials) as channel:
            listed = await environments_of(EnvironmentServiceStub(channel), _ASK_TIMEOUT_S)
    except (Unauthenticated, PermissionDenied):
        return f"{config.server} answers, but lists its environments only to the reward service"
    except ShoalError as error:
        tls = f"with SHOAL_TLS_DIR={folder}" if folder else "without TLS, since SHOAL_TLS_DIR is not set"
        raise InvalidArgument(
            f"{field}: {config.server} does not list its environments: {error.message}; start the server, or correct "
            f"the address (asked once, from this machine, {tls})"
        ) from None
    info = next((info for info in listed if info.name == config.name), None)
    if info is None:
        names = ", ".join(sorted(info.name for info in listed)) or "none"
        raise InvalidArgument(f"{field}: {config.server} has no environment {config.name!r}; it has: {names}")
    if info.unavailable:
        return f"it cannot work at {config.server}: {info.unavailable}"
    return [tool_from_wire(tool) for tool in info.tools]


def with_built_in(config: RunConfig) -> RunConfig:
    """Adds Shoal's own environments with their defaults, except environments whose names are taken."""
    taken = {environment.name for environment in config.environments}
    tables = [{"name": name} for name in sorted(BUILT_IN_ENVIRONMENTS - taken)]
    return with_tables(dump_config(config), tables)


def with_tables(values: dict[str, Any], tables: Sequence[dict[str, Any]]) -> RunConfig:
    """Adds environments to a configuration. Their files are relative to the current folder."""
    values = values | {"environments": [*values.get("environments", []), *tables]}
    find_environment_files(values, Path.cwd())
    return parse_config(values)


def alone(table: dict[str, Any]) -> RunConfig:
    """Returns a configuration with one environment, and otherwise only unused fields.

    Raises `InvalidArgument`, whose message names options instead of fields, since the table was made from options.
    """
    try:
        return with_tables(_UNREAD, [table])
    except InvalidArgument as error:
        raise InvalidArgument("; ".join(map(_of_option, error.violations)) or error.message) from None


def _of_option(violation: FieldViolation) -> str:
    field = violation.field.removeprefix("environments.0").removeprefix(".")
    return f"--{field}: {violation.description}" if field else violation.description


def json_object(text: str, option: str) -> dict[str, Any]:
    """Reads the value of an option. Raises `InvalidArgument` unless it is a JSON object."""
    value = _json(text, option)
    if not isinstance(value, dict):
        raise InvalidArgument(f'{option} must be a JSON object, such as {{"number": 7}} (given: {text:.200})')
    return value


def tool_names(text: str) -> list[str] | None:
    """Reads the value of `--tools`; None for all. Raises `InvalidArgument` unless it is a JSON list of names."""
    if not text:
        return None
    value = _json(text, "--tools")
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidArgument(f'--tools must be a JSON list of names, such as ["add"] (given: {text:.200})')
    return value


def _json(text: str, option: str) -> Any:
    try:
        return parse_json(text, object_pairs_hook=unique_keys)
    except ValueError as error:
        raise InvalidArgument(f"{option} {text!r:.200} is not valid JSON: {error}") from None


@contextmanager
def server_of(config: RunConfig, address: str) -> Iterator[str]:
    """Yields `address`, or, if `address` is empty, the address of a new process here, which ends with the block.

    If the process does not start, it prints the reason, and this function exits.
    """
    if address:
        yield address
        return
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps({"config": dump_config(config)}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise typer.Exit(process.wait() or 1)
        yield json.loads(line)["address"]
    finally:
        process.stdin.close()  # This ends the process.
        process.wait()


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator["EnvironmentServiceAsyncStub"]:
    """Opens a stub with the credentials from environment variables, as other commands do."""
    tls_dir = os.environ.get("SHOAL_TLS_DIR")
    credentials = Credentials.of_client(Path(tls_dir) if tls_dir else None)
    async with connect(address, _SERVICE, credentials) as channel:
        yield EnvironmentServiceStub(channel)


async def environments_of(
    stub: "EnvironmentServiceAsyncStub", timeout_s: float = _LIST_TIMEOUT_S
) -> list[pb.EnvironmentInfo]:
    """Asks a server for its environments."""
    response = await stub.ListEnvironments(pb.ListEnvironmentsRequest(), timeout=timeout_s)
    return list(response.environments)


def _answer(command: str, request: dict[str, Any]) -> Any:
    """Returns the answer of a command.

    If the command fails, it prints the reason, and this function exits with its code.
    """
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, command],
        input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else 1)
    return json.loads(done.stdout)
