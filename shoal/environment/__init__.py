"""The classes for writing environments: `from shoal.environment import Environment, Observation, Turn, tool`.

docs/environments.md is the tutorial. This package needs only the standard library. So an environment can run in another
Python installation, with its own packages and without Shoal's packages.
"""

from shoal.environment.agent import Agent, Policy
from shoal.environment.environment import (
    Broken,
    Environment,
    InvalidTask,
    Observation,
    ToolError,
    Turn,
    Unscorable,
)
from shoal.environment.tools import tool

__all__ = [
    "Agent",
    "Broken",
    "Environment",
    "InvalidTask",
    "Observation",
    "Policy",
    "ToolError",
    "Turn",
    "Unscorable",
    "tool",
]
