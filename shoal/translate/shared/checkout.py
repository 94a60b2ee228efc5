"""Checkouts of other systems: the parts of their source that a translation uses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checkout:
    """The parts of a system's source to which its configurations refer."""

    folder: Path
    defaults: Mapping[str, Any]
    """Field -> default; fields whose default only a run could show are left out."""
    chat_templates: Mapping[str, str | None] = field(default_factory=dict)
    """Name -> Jinja text; None where only a run could show it."""
