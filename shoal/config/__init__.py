"""The configuration of a run: one pydantic model, read from TOML and sent as JSON.

To add a setting, add a field with a docstring to the class of its table here, read it in the service that needs it, and
run `make docs`, which writes docs/configuration.md.
"""

from shoal.config.load import dump_config, load_config, parse_config
from shoal.config.run import RunConfig

__all__ = ["RunConfig", "dump_config", "load_config", "parse_config"]
