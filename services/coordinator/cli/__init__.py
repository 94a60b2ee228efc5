"""The `shoal` command. Importing it is cheap: each command imports what it needs when it runs."""

from services.coordinator.cli.app import main

__all__ = ["main"]
