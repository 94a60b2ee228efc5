"""One version of an environment's code, with the settings that its processes need."""

import json
from dataclasses import dataclass, replace
from typing import Any

from services.reward.custom.code import read_source
from services.reward.environments.builtin.registry import CLASSES
from shoal.config.tables.environments import EnvironmentConfig

_BUILT_IN = "services.reward.environments.builtin"


@dataclass(frozen=True)
class EnvironmentCode:
    """The code that is sent to the processes, so that all of them run the same version."""

    name: str
    object: str
    """The class, or the list of functions."""
    settings: str
    """The settings, as JSON."""
    interpreter: str
    memory_bytes: int
    max_chars: int
    """Largest number of characters of an observation."""
    path: str = ""
    """Path of the file, for messages."""
    source: str = ""
    digest: str = ""
    """SHA-256 of the file, in hex."""
    module: str = ""
    """The module, instead of a file."""
    defined_in: tuple[str, ...] = ()
    """For a module: packages, one of which must define the object. If empty, any package may."""

    @property
    def is_built_in(self) -> bool:
        return self.module.startswith(f"{_BUILT_IN}.")

    def message(self) -> dict[str, Any]:
        """Returns the message for the process."""
        named = {name: getattr(self, name) for name in ("name", "object", "path", "source", "digest", "module")}
        return named | {"settings": json.loads(self.settings), "defined_in": self.defined_in}


def read_code(config: EnvironmentConfig, packages: tuple[str, ...] = ()) -> EnvironmentCode:
    """Reads the current code of a table. For a module, `packages` becomes `defined_in`. Raises `Unusable`."""
    code = EnvironmentCode(
        config.name,
        config.object_name,
        json.dumps(config.settings, sort_keys=True),
        config.interpreter,
        memory_bytes=round(config.max_memory_gib * 2**30),
        max_chars=config.max_observation_chars,
    )
    if config.file:
        path, source, digest = read_source(config.file)
        return replace(code, path=path, source=source, digest=digest)
    if config.module:
        return replace(code, module=config.module, defined_in=packages)
    return replace(code, object=CLASSES[config.code], module=f"{_BUILT_IN}.{config.code}")
