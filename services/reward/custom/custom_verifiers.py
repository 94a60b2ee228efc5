"""The custom verifiers that a configuration and the installed packages name."""

import asyncio
import importlib.metadata
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from services.reward.custom.code import Code, CustomVerifier, Unusable, read_source
from services.reward.custom.probe import probe
from shoal.config.tables.custom_verifiers import ENTRY_POINT_GROUP, CustomVerifierConfig, is_registered
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.errors import FieldViolation, InvalidArgument

_POLL_S = 0.5
"""Pause between two looks at a file."""
SHOWN_DIGITS = 12


def configured_codes(
    config: Mapping[str, CustomVerifierConfig], packages: tuple[str, ...]
) -> tuple[list[Code], list[FieldViolation]]:
    """Returns the code that the configuration names, and the problems of tables whose file cannot be read."""
    codes, problems = [], []
    for name, table in config.items():
        try:
            codes.append(read_code(name, table, packages))
        except Unusable as error:
            problems.append(FieldViolation(f"reward.custom.{name}.{error.field}", str(error)))
    return codes, problems


def read_code(name: str, table: CustomVerifierConfig, packages: tuple[str, ...] = ()) -> Code:
    """Returns the code that a table names, with the current text of its file. Raises `Unusable`."""
    arguments = json.dumps(table.arguments, sort_keys=True)
    code = Code(name, table.function, convention=table.convention, arguments=arguments, score_key=table.score_key)
    if table.file:
        path, source, digest = read_source(table.file)
        return replace(code, path=path, source=source, digest=digest)
    module, _, function = table.entry_point.partition(":")
    bound = () if is_registered(table.entry_point) else packages
    return replace(code, function=function, module=module, defined_in=bound)


def installed_codes(config: Mapping[str, CustomVerifierConfig]) -> list[Code]:
    """Returns the code that packages register, except under names that the configuration uses. Raises `InvalidArgument`
    if a package registers a name that is already used."""
    codes: dict[str, Code] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        name = point.name.lower()
        package = point.dist.name if point.dist else point.value
        if name in config:
            continue
        if name in BUILT_IN_VERIFIERS or name in codes:
            owner = "a built-in verifier" if name in BUILT_IN_VERIFIERS else codes[name].location
            raise InvalidArgument(
                f"the package {package} registers {point.value} in {ENTRY_POINT_GROUP} as the verifier {name!r}, but "
                f"{owner} already has this name: rename the entry point, or uninstall the package"
            )
        # The error of importing a malformed entry point has its name.
        module, _, function = point.value.partition("[")[0].strip().partition(":")
        codes[name] = Code(name, function, module=module)
    return list(codes.values())


async def tried(code: Code) -> CustomVerifier | Unusable:
    """Loads code in a separate process. If the code is unusable, returns the error instead of raising it."""
    try:
        return await probe(code)
    except Unusable as error:
        return error


async def new_versions(file: str) -> AsyncIterator[None]:
    """Yields once for each version of a file, including the current version. Waits until the file has not changed for a
    pause, since a version may be half-written before that."""
    taken: tuple[int, ...] | None = None
    before: tuple[int, ...] = ()
    while True:
        now = await asyncio.to_thread(_state, file)
        if now == before and now != taken:
            taken = now
            yield
        before = now
        await asyncio.sleep(_POLL_S)


def _state(file: str) -> tuple[int, ...]:
    """Returns what tells versions of a file apart, without reading it; empty if the file is missing."""
    try:
        status = Path(file).expanduser().stat()
    except (OSError, RuntimeError):
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
