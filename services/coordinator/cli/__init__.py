"""The `shoal` command. This package is cheap to import: each command imports what it needs when the command runs."""

from services.coordinator.cli.app import main

__all__ = ["main"]
