"""Trying the verifiers of yours that a configuration names, as far as they are on this machine."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.reward.own.own import OwnVerifiers
from shoal.config.own_verifiers import CustomVerifierConfig


@dataclass(frozen=True)
class Checked:
    """What could be tried."""

    digests: Mapping[str, str]
    """SHA-256, in hex, of the code of those that work, by name."""
    elsewhere: tuple[str, ...]
    """Those whose file or package is not on this machine, which need not be the reward service's."""


async def check(config: Mapping[str, CustomVerifierConfig]) -> Checked:
    """Tries them. Raises `InvalidArgument` for those that are here and cannot be used."""
    here = {name: table for name, table in config.items() if _is_here(table)}
    own = OwnVerifiers(here)
    await own.start()
    digests = {name: own.verifiers[name].digest for name in here}
    return Checked(digests, tuple(name for name in config if name not in here))


def _is_here(table: CustomVerifierConfig) -> bool:
    if table.file:
        return Path(table.file).expanduser().exists()
    package = table.entry_point.partition(":")[0].partition(".")[0]
    return importlib.util.find_spec(package) is not None
