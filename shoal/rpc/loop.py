"""Measurement of the event loop's lag."""

import asyncio
import logging
import time

from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

_PROBE_S = 0.5
_WARN_S = 1.0


async def watch_lag() -> None:
    """Measures the lag of the loop forever. Warns above a second: then the loop runs work that belongs in a thread."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(_PROBE_S)
        lag_s = time.monotonic() - began - _PROBE_S
        metrics.histogram(names.LOOP_LAG).record(max(lag_s, 0.0))
        if lag_s > _WARN_S:
            _log.warning("event loop was blocked", extra={"lag_s": round(lag_s, 3)})
