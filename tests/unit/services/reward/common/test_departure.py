"""What a reward service that leaves does with unfinished scores."""

import asyncio
import gc
from typing import Any

import pytest

from services.reward.common.departure import Departure
from shoal.errors import Aborted
from tests.support.waiting import settled


async def test_scores_that_are_given_up_leave_no_exception_unseen() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    departure, never = Departure(), asyncio.Event()
    scores: list[asyncio.Task[Any]] = [asyncio.create_task(never.wait()) for _ in range(2)]
    finished = asyncio.create_task(departure.finished(scores))
    await settled()
    departure.end()
    with pytest.raises(Aborted) as caught:
        await finished
    assert caught.value.reason == "SHUTTING_DOWN"
    await settled()
    assert all(score.cancelled() for score in scores)
    del finished, caught
    gc.collect()
    assert not reported, f"the event loop was told of {reported}"
