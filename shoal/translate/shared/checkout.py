"""Checkouts of other systems: what a translation takes from their own source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checkout:
    """The parts of a system's own source that its configurations refer to."""

    folder: Path
    defaults: Mapping[str, Any]
    """Field -> default; fields whose default only a run could show are left out."""
    chat_templates: Mapping[str, str | None] = field(default_factory=dict)
    """Name -> Jinja text; None where only a run could show it."""
