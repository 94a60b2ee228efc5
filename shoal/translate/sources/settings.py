"""Settings as a source gives them, before they are translated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Settings:
    """The settings of one source."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unset: dict[str, str] = field(default_factory=dict)
    """Fields whose value cannot be read from the source, each with the reason."""

    def take(self, values: Mapping[str, Any]) -> None:
        """Adds settings; later ones replace earlier ones."""
        for name, value in values.items():
            self.values[name] = value
            self.unset.pop(name, None)
