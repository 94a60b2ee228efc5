import asyncio

import pytest

from services.coordinator.workers.losses import MAX_PAUSE_S, Losses, WorkFailed


async def test_pauses_double_with_each_loss_and_other_failures_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    losses = Losses(8)
    losses.count(WorkFailed("generator a:1", "it is shutting down", is_loss=False))
    await losses.pause()
    assert not pauses
    for _ in range(8):
        assert not losses.are_too_many
        losses.count(WorkFailed("generator a:1", "the engine has died"))
        await losses.pause()
    assert losses.are_too_many and pauses == [0.5, 1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S], pauses


def test_a_loss_that_comes_further_than_all_others_is_the_first_again() -> None:
    losses, error = Losses(3), WorkFailed("generator a:1", "killed")
    counts = []
    for progress in (0, 0, 5, 5, 4, 6):
        losses.count(error, progress)
        counts.append(losses.num_losses)
    assert counts == [1, 2, 1, 2, 3, 1], counts
    losses.count(WorkFailed("reward service b:1", "it cannot be scored", is_loss=False), 9)
    assert losses.num_losses == 1, "what is counted elsewhere begins no new count"
