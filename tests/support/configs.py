"""The smallest configuration of a run, for tests that care about a few of its fields."""

from pathlib import Path
from typing import Any

from shoal.config import RunConfig, parse_config


def run_config(model: str | Path = "m", **sections: object) -> RunConfig:
    """The configuration of a run of arithmetic with this model, and with these sections in place of their defaults."""
    return parse_config({"model": {"path": str(model)}, "data": {"sources": [{"task": "arithmetic"}]}} | sections)


def extended(config: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with these sections: tables are added to its own, lists replace them."""
    return config | {
        name: config.get(name, {}) | values if isinstance(values, dict) else values for name, values in sections.items()
    }
