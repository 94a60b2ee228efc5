"""What an environment is written with: `from shoal.environment import Environment, Observation, Turn, tool`.

docs/environments.md is the tutorial. This package needs the standard library alone, so that an environment can run in
another Python, where its own packages are installed and ours are not.
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
