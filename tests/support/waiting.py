"""Waits for conditions. Tests wait for events, not for time."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120.0
"""Longest wait for something that takes at most seconds on an idle machine. Costs nothing when the test passes."""
_INTERVAL_S = 0.02


async def eventually(condition: Callable[[], Any], message: str = "", *, timeout_s: float = PATIENCE_S) -> Any:
    """Returns the first true value of `condition`, which may be a coroutine function; fails after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < give_up, f"not within {timeout_s:.0f} s: {message or condition}; last {value!r}"
        await asyncio.sleep(_INTERVAL_S)


async def settled() -> None:
    """Lets every task run until it waits for something else than another task's turn."""
    for _ in range(20):
        await asyncio.sleep(0)


def block_until(condition: Callable[[], Any], message: str = "", *, timeout_s: float = PATIENCE_S) -> Any:
    """Returns the first true value of `condition`, for tests without an event loop; fails after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < give_up, f"not within {timeout_s:.0f} s: {message or condition}; last {value!r}"
        time.sleep(_INTERVAL_S)
    return value
