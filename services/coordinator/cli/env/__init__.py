"""`shoal env ...`: environments, without a run."""

from services.coordinator.cli.env.command import app

__all__ = ["app"]
