"""`shoal config suggest`: a configuration to start from."""

from shoal.suggest.cost import H100, rates_of_run
from shoal.suggest.suggestion import Suggestion, suggest

__all__ = ["H100", "Suggestion", "rates_of_run", "suggest"]
