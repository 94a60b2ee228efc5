"""The description of another system, with the facts that a translation needs."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.translate.shared.draft import Checkout, Draft, Source
from shoal.translate.shared.field import Field


@dataclass(frozen=True)
class System:
    """A trainer whose configurations can be translated."""

    name: str
    table: tuple[Field, ...]
    """A row for each known field."""
    compose: Callable[[Source, Draft], None]
    """Sets the fields that several rows decide together. Reads every row that is `composed`."""
    model_field: str
    """The field that names the model."""
    data_field: str = ""
    """The field that names the data, if there is one."""
    implied: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Shoal's fields that the system decides without a setting, each with value and reason."""
    programs: tuple[re.Pattern[str], ...] = ()
    """Names of the system's trainer in launch scripts."""
    calls: tuple[str, ...] = ()
    """Classes whose calls in Python files contain the system's settings."""
    refused_calls: Mapping[str, str] = field(default_factory=dict)
    """Classes with the settings of another trainer, each with the reason why they are not translated."""
    calls_beside: tuple[str, ...] = ()
    """Other calls, "f" or "Class.f". Their keywords are the fields "f.keyword" that the table knows."""
    trainer: str = ""
    """The class that trains. Calls after its call concern the trained model."""
    positional_parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the positional parameters of each call."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Keywords of `calls` whose value is another call, each with the keywords of that call that are renamed."""
    piecewise: tuple[str, ...] = ()
    """Tables whose settings `compose` judges one by one if they cannot be read from a Python file."""
    functions: tuple[str, ...] = ()
    """Fields that are functions, which a Python file names."""
    datasets: tuple[str, ...] = ()
    """Fields that are data sets, which a Python file loads."""
    measured: tuple[str, ...] = ()
    """Fields that a Python file may measure on its data; `compose` handles unreadable ones."""
    defaults_as_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The defaults of a month that differ from the table's defaults, by month "YYYY-MM"."""
    last_month_of: Mapping[str, str] = field(default_factory=dict)
    """Fields that only an old version has, each with the month in `defaults_as_of` that has the nearest defaults."""
    read_checkout: Callable[[Path], Checkout] | None = None
    """Reads defaults and chat templates from the system's own source."""
    environment: Collection[str] = ()
    """Fields that are environment variables, which a launch script sets or passes to its launcher."""
    presets: re.Pattern[str] | None = None
    """References to the system's own files, which are known by name."""
    is_nested: bool = False
    """Whether fields are dotted names, from nested YAML or overrides a.b=c, and not flags."""

    @property
    def rows(self) -> dict[str, Field]:
        """The row of each field, by every spelling of the field's name."""
        return {name: row for row in self.table for name in row.spellings}

    @property
    def flags(self) -> list[str]:
        """Fields that may be true or false, so that `--no_NAME` means false."""
        return [name for name, row in self.rows.items() if row.kind in ("flag", "any")]

    @property
    def valued(self) -> list[str]:
        """Fields that are one number or text, so that a flag without a value is an error."""
        return [name for name, row in self.rows.items() if row.kind in ("integer", "number", "text")]

    @property
    def families(self) -> list[str]:
        """The rows "a.*", each of which covers all fields below a."""
        return [row.name for row in self.table if row.name.endswith(".*")]

    @property
    def wholes(self) -> set[str]:
        """Fields that are whole tables. All other fields that have a family below them are read part by part."""
        families = set(self.families)
        return {name for name, row in self.rows.items() if row.kind == "table" or f"{name}.*" not in families}

    def knows(self, name: str) -> bool:
        """Returns whether a field, or a family of fields, has this name."""
        return name in self.rows or any(name.startswith(family[:-1]) for family in self.families)

    @property
    def tables(self) -> list[str]:
        """Fields that are tables. A nested source may give their settings one by one."""
        return [name for name, row in self.rows.items() if row.kind == "table"]
