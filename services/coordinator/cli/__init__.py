"""The `shoal` command. Its import is cheap: each command imports its packages when the command runs."""

from services.coordinator.cli.app import main

__all__ = ["main"]
