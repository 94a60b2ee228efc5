"""The configuration of a run: one pydantic model, read from TOML and sent as JSON.

To add a setting, add a field with a docstring to the class of its table in `tables`, read the field in the service that
needs the setting, and run `make docs`, which writes docs/configuration.md. `fits` has requirements between tables.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.config.load import dump_config, load_config, parse_config
    from shoal.config.run import RunConfig

__all__ = ["RunConfig", "dump_config", "load_config", "parse_config"]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: verifier processes, which start often, need only `tables.section`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module("shoal.config.run" if name == "RunConfig" else "shoal.config.load")
    return getattr(module, name)
