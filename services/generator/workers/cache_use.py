"""The share of the key-value cache that an engine uses. Importing this module imports vLLM."""

from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger

from services.generator.workers.recent_mean import RecentMean

_WINDOW_S = 5.0
"""The window in seconds. It is longer than the time between heartbeats, so that they cover every moment."""


class CacheUse(PrometheusStatLogger):
    """Keeps the statistics that vLLM's scheduler reports after each of its steps.

    vLLM collects these statistics only for a logger, and adds its own Prometheus logger unless another logger is given.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        self._share = RecentMean(_WINDOW_S)

    @property
    def share(self) -> float | None:
        """Share of the cache in use, 0 to 1, over the last seconds; None before the first step."""
        return self._share.mean

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self._share.set(float(scheduler_stats.kv_cache_usage))

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        pass

    def record_admission_rejection(self, reason: str) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass


def start_engine(arguments: Any) -> tuple[AsyncLLM, CacheUse]:
    """Starts an engine that reports the use of its cache. Raises the errors of vLLM."""
    llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[CacheUse])
    # Otherwise vLLM would time each token, for statistics that nobody reads.
    llm.log_stats = False
    assert llm.logger_manager is not None
    (use,) = (logger for logger in llm.logger_manager.stat_loggers if isinstance(logger, CacheUse))
    return llm, use
