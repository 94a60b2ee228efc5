"""The settings of a source, before translation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.translate.shared.draft import OwnFunction


@dataclass
class Settings:
    """The settings of one source."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings that a Python file assigns after it has parsed its command line, so that no flag changes them."""
    functions: dict[str, OwnFunction] = field(default_factory=dict)
    """Functions of a Python file, by their placeholder in a setting's value."""
    unset: dict[str, str] = field(default_factory=dict)
    """Fields whose value cannot be read, each with the reason."""

    def miss(self, name: str, reason: str) -> None:
        """Removes a setting whose value cannot be read, and all settings below it. Records the reason."""
        for each in [each for each in self.values if f"{each}.".startswith(f"{name}.")]:
            del self.values[each]
        self.unset[name] = reason

    def take(self, values: Mapping[str, Any]) -> None:
        """Adds settings. A later setting replaces an earlier one."""
        for name, value in values.items():
            if self.fixed.get(name, value) != value:
                self.notes.append(f"{name} = {value} changes nothing: the file later assigns {self.fixed[name]}")
                continue
            self.values[name] = value
            self.unset.pop(name, None)
