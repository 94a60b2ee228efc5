"""What a source gives, before anything is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Given:
    """What a source gives."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unset: dict[str, str] = field(default_factory=dict)
    """Fields whose value the source does not tell, and why."""

    def take(self, values: Mapping[str, Any]) -> None:
        """Adds settings; later ones replace earlier ones."""
        for name, value in values.items():
            self.values[name] = value
            self.unset.pop(name, None)
