import asyncio

import pytest

from services.coordinator.workers.lost_work import MAX_PAUSE_S, LostWork, WorkFailed

KILLED = WorkFailed("generator a:1", "killed")
NO_LOSS = WorkFailed("generator a:1", "it is shutting down", is_loss=False)


async def test_pauses_between_tries_double_with_each_loss_and_other_failures_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | str] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def goes_on() -> None:
        waits.append("goes on")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    lost = LostWork(8, goes_on)
    async for number in lost:
        if lost.count(NO_LOSS if number == 0 else KILLED):
            break
    assert number == 8 and waits[:4] == ["goes on", 0.5, "goes on", 1], (number, waits)
    assert waits[1::2] == [0.5, 1, 2, 4, 8, 16, MAX_PAUSE_S], waits


def test_a_loss_that_comes_further_than_all_others_is_the_first_again() -> None:
    lost = LostWork(3)
    counts = []
    for progress in (0, 0, 5, 5, 4, 6):
        lost.count(KILLED, progress)
        counts.append(lost.num_losses)
    assert counts == [1, 2, 1, 2, 3, 1], counts
    lost.count(NO_LOSS, 9)
    assert lost.num_losses == 1, "what is counted elsewhere begins no new count"
