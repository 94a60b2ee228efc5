"""Configurations of other GRPO trainers as ours: nothing is dropped silently."""

from collections.abc import Sequence

from shoal.config.translate.open_instruct import OPEN_INSTRUCT
from shoal.config.translate.reading import read_given
from shoal.config.translate.roll import ROLL
from shoal.config.translate.system import System
from shoal.config.translate.translation import Translation, translate
from shoal.config.translate.trl import TRL
from shoal.config.translate.unsloth import UNSLOTH
from shoal.config.translate.verl import VERL

SYSTEMS: dict[str, System] = {system.name: system for system in (OPEN_INSTRUCT, ROLL, UNSLOTH, TRL, VERL)}
"""By the name that `--from` takes."""


def translate_arguments(
    name: str, arguments: Sequence[str], *, skip: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Translation:
    """Translates a file or flags of the system of that name; see `translate`."""
    system = SYSTEMS[name]
    title = arguments[0] if arguments and not arguments[0].startswith("-") and "=" not in arguments[0] else ""
    return translate(system, read_given(system, arguments), skip=skip, overrides=overrides, title=title)


__all__ = ["SYSTEMS", "System", "Translation", "translate", "translate_arguments"]
