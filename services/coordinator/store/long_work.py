"""Events that show that long work is still running."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.coordinator.store.events import EventLog
from shoal.quantities import format_duration

FIRST_AFTER_S = 5.0
EVERY_S = 15.0
SLOW_STEP_S = 30.0
"""Seconds after which a part of a train step is shown. Steps have their own line, so shorter parts are not shown."""


@asynccontextmanager
async def shown_alive(
    events: EventLog, work: str, state: Callable[[], str], *, first_after_s: float | None = None
) -> AsyncIterator[None]:
    """Adds an event `progress` now and then while the body runs: after 5 s (or `first_after_s`), then every 15 s.

    `work` names the work: "writing checkpoint step-00000010". `state` describes how far it is. While `state` returns
    nothing, for example in a pause, there is no event.
    """
    first_s = FIRST_AFTER_S if first_after_s is None else first_after_s
    showing = asyncio.create_task(_show(events, work, state, first_s))
    try:
        yield
    finally:
        showing.cancel()


async def _show(events: EventLog, work: str, state: Callable[[], str], first_after_s: float) -> None:
    began, wait_s = time.monotonic(), first_after_s
    while True:
        await asyncio.sleep(wait_s)
        wait_s = EVERY_S
        elapsed_s = time.monotonic() - began
        if text := state():
            message = f"{work}: {text} ({format_duration(elapsed_s)} so far)"
            events.add("progress", message, work=work, state=text, elapsed_s=elapsed_s)
