"""`shoal config suggest`: a configuration to start from."""

from shoal.config.suggest.suggestion import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
