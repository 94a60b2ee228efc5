"""`shoal config suggest`: a configuration to start from."""

from shoal.config.suggest.cost import H100
from shoal.config.suggest.measured import rates_of_run
from shoal.config.suggest.suggestion import Suggestion, suggest

__all__ = ["H100", "Suggestion", "rates_of_run", "suggest"]
