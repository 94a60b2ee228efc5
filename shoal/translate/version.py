"""Defaults of another version of a system: of the month in which a script was written, or of a checkout."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument
from shoal.translate.shared.draft import Checkout
from shoal.translate.shared.field import Fate, Field, Unfit, read_value
from shoal.translate.shared.system import System
from shoal.translate.sources.settings import Settings

_JUDGED = (Fate.ACCEPTED, Fate.NOT_YET, Fate.REFUSED)


@dataclass(frozen=True)
class Version:
    """The version of a system that a translation assumes."""

    checkout: Checkout | None = None
    month: str = ""

    @property
    def suffix(self) -> str:
        """The text after "open-instruct's default", such as " in 2026-02"; empty for the version of Shoal's table."""
        if self.checkout is not None:
            return " in the checkout"
        return f" in {self.month}" if self.month else ""


CURRENT = Version()
"""The version that the table of fields describes."""


def choose_version(system: System, *, as_of: str = "", checkout: Path | None = None) -> Version:
    """Returns the version that `--as-of` or `--checkout` names.

    Raises `InvalidArgument` if both are given, if the month's defaults are unknown, or if the folder is no checkout.
    """
    if as_of and checkout is not None:
        raise InvalidArgument("--as-of and --checkout both decide the defaults: give one of them")
    if checkout is not None:
        if system.read_checkout is None:
            raise InvalidArgument(f"--checkout: Shoal reads nothing from a checkout of {system.name}: leave it out")
        return Version(checkout=system.read_checkout(checkout))
    if as_of and not system.defaults_as_of:
        raise InvalidArgument(
            f"--as-of {as_of}: Shoal knows only one version of {system.name}: leave out --as-of, and write into the "
            "source each field whose default was different"
        )
    if as_of and as_of not in system.defaults_as_of:
        known = " or ".join(system.defaults_as_of)
        other = "; for another month, check out that version, and give --checkout DIR" if system.read_checkout else ""
        raise InvalidArgument(f"--as-of {as_of} is unknown for {system.name}: give {known}{other}")
    return Version(month=as_of)


def implied_version(system: System, version: Version, settings: Settings) -> Version:
    """Returns the chosen version. If none is chosen, fields that only an old version has imply that version."""
    months = [month for name, month in system.last_month_of.items() if name in settings.values]
    return Version(month=months[0]) if months and version == CURRENT else version


def with_defaults(system: System, version: Version, settings: Settings) -> tuple[System, Settings]:
    """Returns the system with the version's defaults. A default that Shoal may refuse is added to the settings."""
    defaults = system.defaults_as_of.get(version.month, {})
    settings = replace(settings, values=dict(settings.values), notes=list(settings.notes))
    if version.checkout is not None:
        defaults = version.checkout.defaults
        if unknown := sorted(defaults.keys() - system.rows.keys()):
            settings.notes.append(f"the checkout has fields that Shoal does not know: {', '.join(unknown)}")
    return replace(system, table=tuple(_with_default(row, defaults, settings) for row in system.table)), settings


def _with_default(row: Field, defaults: Mapping[str, Any], settings: Settings) -> Field:
    names = [name for name in row.spellings if name in defaults]
    if not names:
        return row
    try:
        default = read_value(row.kind, defaults[names[0]])
    except Unfit as error:
        settings.notes.append(f"{names[0]}: the checkout's default cannot be read: {error}")
        return row
    is_set = any(name in settings.values for name in row.spellings)
    if row.fate in _JUDGED and default != row.default and not is_set:
        settings.values[row.name] = default
    return replace(row, default=default)
