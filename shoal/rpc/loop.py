"""Watches that the event loop stays responsive."""

import asyncio
import logging
import time

from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

_PROBE_S = 0.5
_WARN_S = 1.0


async def watch_lag() -> None:
    """Measures for ever how late the loop is, and warns of more than a second: something works in it that should
    work beside it."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(_PROBE_S)
        lag_s = time.monotonic() - began - _PROBE_S
        metrics.histogram(names.LOOP_LAG).record(max(lag_s, 0.0))
        if lag_s > _WARN_S:
            _log.warning("event loop was blocked", extra={"lag_s": round(lag_s, 3)})
