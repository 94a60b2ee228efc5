"""The custom verifiers that a configuration and the installed packages name."""

import asyncio
import importlib.metadata
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.reward.custom.code import Code, Unusable, read_code
from services.reward.custom.probe import Probed, probe
from shoal.config.tables.custom_verifiers import ENTRY_POINT_GROUP, CustomVerifierConfig, is_registered
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.errors import FieldViolation, InvalidArgument

_log = logging.getLogger(__name__)

POLL_S = 0.5
"""Pause between two looks at the files. A changed file is read when it has not changed during a pause, so that no
half-written file is used."""
SHOWN_DIGITS = 12

FileState = tuple[int, int, int]
MISSING: FileState = (0, 0, 0)


@dataclass(frozen=True)
class CustomVerifier:
    """A custom verifier, with the code that judges the next completion."""

    code: Code
    parameters: frozenset[str] = frozenset()
    """The arguments of its function."""
    description: str = ""
    digest: str = ""
    unavailable: str = ""
    """The reason why it cannot be called. Set only for a package's verifier that no configuration names."""


class CustomVerifiers:
    """Finds custom verifiers, tries each before its use, and takes new code when files change. Belongs to one event
    loop."""

    def __init__(
        self,
        config: Mapping[str, CustomVerifierConfig],
        on_code: Callable[[CustomVerifier], None] = lambda _: None,
        packages: Sequence[str] = (),
    ) -> None:
        """`on_code` gets each version when its use begins.

        Without `packages` a function may come from anywhere. Otherwise one of them must define it, or a package must
        register it.
        """
        self._packages = tuple(packages)
        self._config = dict(sorted(config.items()))  # A Struct has no order, but messages should be stable.
        self._on_code = on_code
        self._verifiers: dict[str, CustomVerifier] = {}
        self._notices: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def verifiers(self) -> Mapping[str, CustomVerifier]:
        """By name."""
        return self._verifiers

    @property
    def notice(self) -> str:
        """A message for people: files whose new version is not used. Empty if there are none."""
        return "; ".join(self._notices.values())

    async def find(self) -> None:
        """Reads and tries all custom verifiers.

        Raises `InvalidArgument` with each unusable table and the reason; then no verifier is changed.
        """
        codes, problems = _configured(self._config, self._packages)
        installed = _installed(self._config)
        tried = await asyncio.gather(*(_tried(code) for code in (*codes, *installed)))
        results = dict(zip((*codes, *installed), tried, strict=True))
        problems += [
            FieldViolation(f"reward.custom.{code.name}.{result.field}", str(result))
            for code, result in results.items()
            if isinstance(result, Unusable) and code.name in self._config
        ]
        if problems:
            raise InvalidArgument(
                "; ".join(f"{problem.field}: {problem.description}" for problem in problems), violations=problems
            )
        self._notices.clear()
        for code, result in results.items():
            if isinstance(result, Probed):
                self._use(code, result)
            else:
                self._verifiers[code.name] = CustomVerifier(code, unavailable=str(result))
                _log.error("verifier of a package not usable", extra={"verifier": code.name, "error": str(result)})

    def watch(self) -> None:
        """Begins to take new code, for the tables with `reload`."""
        if any(table.reload for table in self._config.values()):
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stops watching the files."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        files = {name: table.file for name, table in self._config.items() if table.reload}
        # The files may have changed since `find` read them, so compare each file with its code once.
        taken: dict[str, FileState | None] = dict.fromkeys(files)
        before: dict[str, FileState] = dict.fromkeys(files, MISSING)
        while True:
            now = await asyncio.to_thread(lambda: {name: file_state(file) for name, file in files.items()})
            for name, state in now.items():
                if state == before[name] and state != taken[name]:
                    taken[name] = state
                    await self._reload(name)
            before = now
            await asyncio.sleep(POLL_S)

    async def _reload(self, name: str) -> None:
        """Takes a file's code if it differs from the current one and works."""
        table, current = self._config[name], self._verifiers[name]
        try:
            code = await asyncio.to_thread(read_code, name, table)
            if code.digest != current.digest:
                self._use(code, await probe(code))
                fields = {"verifier": name, "code": code.digest, "before": current.digest, "file": code.path}
                _log.info("verifier has new code", extra=fields)
        except Unusable as error:
            self._notices[name] = (
                f"reward.custom.{name}.{error.field}: the new version is not used, and "
                f"{current.digest[:SHOWN_DIGITS]} stays in use: {error}"
            )
            _log.error("verifier keeps its code", extra={"verifier": name, "error": self._notices[name]})
        else:
            self._notices.pop(name, None)

    def _use(self, code: Code, probed: Probed) -> None:
        verifier = CustomVerifier(code, probed.parameters, probed.description, probed.digest)
        self._verifiers[code.name] = verifier
        self._on_code(verifier)


def _configured(
    config: Mapping[str, CustomVerifierConfig], packages: tuple[str, ...]
) -> tuple[list[Code], list[FieldViolation]]:
    """Returns the code that the configuration names, and the problems of tables whose file cannot be read."""
    codes, problems = [], []
    for name, table in config.items():
        try:
            if table.file:
                codes.append(read_code(name, table))
            else:
                module, _, function = table.entry_point.partition(":")
                arguments = json.dumps(table.arguments, sort_keys=True)
                how = {"convention": table.convention, "arguments": arguments, "score_key": table.score_key}
                bound = () if is_registered(table.entry_point) else packages
                codes.append(Code(name, function, module=module, defined_in=bound, **how))
        except Unusable as error:
            problems.append(FieldViolation(f"reward.custom.{name}.{error.field}", str(error)))
    return codes, problems


def _installed(config: Mapping[str, CustomVerifierConfig]) -> list[Code]:
    """Returns the code that packages register, except under names that the configuration uses.

    Raises `InvalidArgument` if a package registers a name that is already used.
    """
    codes: dict[str, Code] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        name = point.name.lower()
        package = point.dist.name if point.dist else point.value
        if name in config:
            continue
        if name in BUILT_IN_VERIFIERS or name in codes:
            owner = "a built-in verifier" if name in BUILT_IN_VERIFIERS else f"that of {codes[name].location}"
            raise InvalidArgument(
                f"the package {package} registers a verifier {name!r} (entry point {point.value} in "
                f"{ENTRY_POINT_GROUP}), which is the name of {owner}: rename its entry point, or uninstall it"
            )
        # A malformed entry point cannot be imported; the error then has its name.
        module, _, function = point.value.partition("[")[0].strip().partition(":")
        codes[name] = Code(name, function, module=module)
    return list(codes.values())


async def _tried(code: Code) -> Probed | Unusable:
    try:
        return await probe(code)
    except Unusable as error:
        return error


def file_state(file: str) -> FileState:
    """Returns the state of a file, which differs between versions of the file, without reading it."""
    try:
        status = Path(file).expanduser().stat()
    except (OSError, RuntimeError):
        return MISSING
    return status.st_mtime_ns, status.st_size, status.st_ino
