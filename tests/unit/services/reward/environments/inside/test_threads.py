"""Tests of the threads of agents."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.reward.environments.inside.episodes import in_thread


class Stop(BaseException):
    pass


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (ValueError("no"), ValueError, "no"),
        (SystemExit(2), RuntimeError, r"it called exit\(2\)"),
        (StopIteration(7), RuntimeError, r"it raised StopIteration\(7\)"),
        (KeyboardInterrupt(), KeyboardInterrupt, ".*"),
        (asyncio.CancelledError("by itself"), asyncio.CancelledError, "by itself"),
        (Stop("that was all"), Stop, "that was all"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_work_raises_reaches_who_waits_for_it(
    error: BaseException, raised: type[BaseException], says: str
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(raised, match=says):
            await in_thread(raising(error))


async def test_what_work_returns_reaches_who_waits_for_it() -> None:
    assert await in_thread(lambda: 3) == 3
