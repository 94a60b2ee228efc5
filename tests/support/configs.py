"""The smallest configuration of a run, for tests that care about a few of its fields."""

from typing import Any

from shoal.config import RunConfig, parse_config


def run_config(model: str = "m", **sections: object) -> RunConfig:
    """The configuration of a run of arithmetic with this model, and with these sections in place of their defaults."""
    return parse_config({"model": {"path": model}, "data": {"sources": [{"task": "arithmetic"}]}} | sections)


def extended(config: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with these sections: tables are added to its own, lists replace them."""
    return config | {
        name: config.get(name, {}) | values if isinstance(values, dict) else values for name, values in sections.items()
    }
