"""What a translation needs to know about another system."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.config.translate.draft import Draft, Source
from shoal.config.translate.fields import Field


@dataclass(frozen=True)
class System:
    """A trainer whose configurations can be translated."""

    name: str
    table: tuple[Field, ...]
    """A row for each known field."""
    compose: Callable[[Source, Draft], None]
    """Sets what several fields decide together; reads every row that is `composed`."""
    model_field: str
    """The field that names the model."""
    data_field: str = ""
    """The field that names the data, where the system has one."""
    implied: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Fields of ours that the system decides by what it is: value, and the reason."""
    programs: tuple[re.Pattern[str], ...] = ()
    """What its trainer is called in launch scripts."""
    calls: tuple[str, ...] = ()
    """Classes whose calls in Python files hold its settings."""
    calls_beside: tuple[str, ...] = ()
    """Calls beside them; a keyword of one is the field "call.keyword", where the table has it or a family of it."""
    places: tuple[str, ...] = ()
    """Parameters of those that are given by place."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Keywords of those calls that are calls themselves, whose keywords are settings; and the settings' names there."""
    piecewise: tuple[str, ...] = ()
    """Fields that are tables, of which `compose` judges each setting that a Python file does not tell."""
    functions: tuple[str, ...] = ()
    """Fields that hold functions, of which a Python file tells the names."""
    presets: re.Pattern[str] | None = None
    """References to files of the system's own that are known by their names; they stay as they are written."""
    is_nested: bool = False
    """Its fields are dotted names, from nested YAML or overrides a.b=c, not flags."""

    @property
    def names(self) -> list[str]:
        """Every spelling of every field."""
        return [name for row in self.table for name in (row.name, *row.aliases)]

    @property
    def flags(self) -> list[str]:
        """Fields that are true or false."""
        return [name for row in self.table if row.kind == "flag" for name in (row.name, *row.aliases)]

    @property
    def families(self) -> list[str]:
        """Rows "a.*" that stand for all fields below a."""
        return [row.name for row in self.table if row.name.endswith(".*")]
