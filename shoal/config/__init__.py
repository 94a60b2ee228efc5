"""The configuration of a run: one pydantic model, read from TOML, sent as JSON."""

from shoal.config.load import dump_config, load_config, parse_config
from shoal.config.run import RunConfig

__all__ = ["RunConfig", "dump_config", "load_config", "parse_config"]
