"""Translates the configurations of other GRPO trainers ("peers"). No setting is dropped silently.

To add a peer, write a folder here like `roll/`: `fields.py` with a row for each of its fields, `compose.py` for
settings that several fields decide together, `__init__.py` with its `System`. Then add it to `SYSTEMS` below and to the
layers in pyproject.toml. `sources/` already reads shell scripts, flags, YAML, JSON, Python and notebooks; `shared/` has
code that the peers share.
"""

from collections.abc import Sequence
from pathlib import Path

from shoal.translate.open_instruct import OPEN_INSTRUCT
from shoal.translate.roll import ROLL
from shoal.translate.shared.system import System
from shoal.translate.sources.reading import read_settings
from shoal.translate.translation import Translation, translate
from shoal.translate.trl import TRL
from shoal.translate.unsloth import UNSLOTH
from shoal.translate.verl import VERL
from shoal.translate.version import choose_version

SYSTEMS: dict[str, System] = {system.name: system for system in (OPEN_INSTRUCT, ROLL, UNSLOTH, TRL, VERL)}
"""Peers by the name that `--from` takes."""


def translate_arguments(
    name: str,
    arguments: Sequence[str],
    *,
    skip: Sequence[str] = (),
    overrides: Sequence[str] = (),
    as_of: str = "",
    checkout: Path | None = None,
) -> Translation:
    """Translates a file or flags of the system with this name; see `translate` and `choose_version`."""
    system = SYSTEMS[name]
    version = choose_version(system, as_of=as_of, checkout=checkout)
    title = arguments[0] if arguments and not arguments[0].startswith("-") and "=" not in arguments[0] else ""
    settings = read_settings(system, arguments)
    return translate(system, settings, skip=skip, overrides=overrides, title=title, version=version)


__all__ = ["SYSTEMS", "System", "Translation", "translate", "translate_arguments"]
