"""`shoal env ...`: commands for environments, which need no run."""

from services.coordinator.cli.env.command import app

__all__ = ["app"]
