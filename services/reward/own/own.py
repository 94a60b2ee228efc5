"""The verifiers of yours that a configuration and the installed packages name."""

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.reward.own.code import Code, Unusable, read_code
from services.reward.own.probe import Probed, probe
from shoal.config.own_verifiers import CustomVerifierConfig
from shoal.errors import FieldViolation, InvalidArgument
from shoal.verifiers import BUILT_IN_VERIFIERS, ENTRY_POINT_GROUP

_log = logging.getLogger(__name__)

POLL_S = 0.5
"""Between two looks at the files. A change is taken when it has stayed for one of them, so that half a file is not."""
_SHOWN_DIGITS = 12

_Seen = tuple[int, int, int]
_GONE: _Seen = (0, 0, 0)


@dataclass(frozen=True)
class OwnVerifier:
    """One of them, with the code that judges the next completion."""

    code: Code
    wants: frozenset[str] = frozenset()
    """What its function takes."""
    description: str = ""
    digest: str = ""
    unavailable: str = ""
    """Why it cannot be called: of a package that nobody asked for by configuration."""


class OwnVerifiers:
    """Finds them, tries each before it is used, and takes new code as files change. Belongs to one event loop."""

    def __init__(
        self, config: Mapping[str, CustomVerifierConfig], on_code: Callable[[OwnVerifier], None] = lambda _: None
    ) -> None:
        """`on_code` is told of every version that is to be used from then on."""
        self._config = dict(sorted(config.items()))  # A Struct has no order, and messages should not change.
        self._on_code = on_code
        self._verifiers: dict[str, OwnVerifier] = {}
        self._notices: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def verifiers(self) -> Mapping[str, OwnVerifier]:
        """By name."""
        return self._verifiers

    @property
    def notice(self) -> str:
        """What people should know of: files whose new version is not used. Empty when all is well."""
        return "; ".join(self._notices.values())

    async def start(self) -> None:
        """Tries all of them. Raises `InvalidArgument` that names each table that cannot be used, and why."""
        codes, problems = _named(self._config)
        installed = _installed(self._config)
        tried = await asyncio.gather(*(_tried(code) for code in (*codes, *installed)))
        for code, result in zip((*codes, *installed), tried, strict=True):
            if isinstance(result, Probed):
                self._use(code, result)
            elif code.name in self._config:
                problems.append(FieldViolation(f"reward.custom.{code.name}.{result.field}", str(result)))
            else:
                self._verifiers[code.name] = OwnVerifier(code, unavailable=str(result))
                _log.error("verifier of a package not usable", extra={"verifier": code.name, "error": str(result)})
        if problems:
            raise InvalidArgument(
                "; ".join(f"{problem.field}: {problem.description}" for problem in problems), violations=problems
            )

    def watch(self) -> None:
        """Takes new code from now on, where `reload` asks for it."""
        if any(table.reload for table in self._config.values()):
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Looks at files no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        files = {name: table.file for name, table in self._config.items() if table.reload}
        # What was read by `start` may have changed since: everything is looked at once.
        taken: dict[str, _Seen | None] = dict.fromkeys(files)
        before: dict[str, _Seen] = dict.fromkeys(files, _GONE)
        while True:
            now = await asyncio.to_thread(lambda: {name: _seen(file) for name, file in files.items()})
            for name, seen in now.items():
                if seen == before[name] and seen != taken[name]:
                    taken[name] = seen
                    await self._look_at(name)
            before = now
            await asyncio.sleep(POLL_S)

    async def _look_at(self, name: str) -> None:
        """Takes a file's code if it is another one and works."""
        table, current = self._config[name], self._verifiers[name]
        try:
            code = await asyncio.to_thread(read_code, name, table.file, table.function)
            if code.digest != current.digest:
                self._use(code, await probe(code))
                said = {"verifier": name, "code": code.digest, "before": current.digest, "file": code.path}
                _log.info("verifier has new code", extra=said)
        except Unusable as error:
            self._notices[name] = (
                f"reward.custom.{name}.{error.field}: the new version is not used, and "
                f"{current.digest[:_SHOWN_DIGITS]} goes on: {error}"
            )
            _log.error("verifier keeps its code", extra={"verifier": name, "error": self._notices[name]})
        else:
            self._notices.pop(name, None)

    def _use(self, code: Code, probed: Probed) -> None:
        verifier = OwnVerifier(code, probed.wants, probed.description, probed.digest)
        self._verifiers[code.name] = verifier
        self._on_code(verifier)


def _named(config: Mapping[str, CustomVerifierConfig]) -> tuple[list[Code], list[FieldViolation]]:
    """What the configuration names, and what cannot be read of it."""
    codes, problems = [], []
    for name, table in config.items():
        try:
            if table.file:
                codes.append(read_code(name, table.file, table.function))
            else:
                module, _, function = table.entry_point.partition(":")
                codes.append(Code(name, function, module=module))
        except Unusable as error:
            problems.append(FieldViolation(f"reward.custom.{name}.{error.field}", str(error)))
    return codes, problems


def _installed(config: Mapping[str, CustomVerifierConfig]) -> list[Code]:
    """What packages bring, but for names that the configuration gives to something else.

    Raises `InvalidArgument` where a package takes a name that is taken.
    """
    codes: dict[str, Code] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        name = point.name.lower()
        package = point.dist.name if point.dist else point.value
        if name in config:
            continue
        if name in BUILT_IN_VERIFIERS or name in codes:
            owner = "one that comes with Shoal" if name in BUILT_IN_VERIFIERS else f"that of {codes[name].place}"
            raise InvalidArgument(
                f"the package {package} brings a verifier {name!r} (entry point {point.value} in {ENTRY_POINT_GROUP}), "
                f"which is the name of {owner}: rename its entry point, or uninstall it"
            )
        # One that is malformed does not import, and is told of by its name.
        module, _, function = point.value.partition("[")[0].strip().partition(":")
        codes[name] = Code(name, function, module=module)
    return list(codes.values())


async def _tried(code: Code) -> Probed | Unusable:
    try:
        return await probe(code)
    except Unusable as error:
        return error


def _seen(file: str) -> _Seen:
    """What tells one version of a file from another without reading it."""
    try:
        status = Path(file).expanduser().stat()
    except (OSError, RuntimeError):
        return _GONE
    return status.st_mtime_ns, status.st_size, status.st_ino
