"""Rounds of turns of a deterministic run."""

import asyncio

from services.coordinator.workers.deterministic_batches import Batch, Seat
from services.coordinator.workers.turn_batches import TurnRounds

EPISODES = [("a", 0), ("a", 1), ("b", 0)]


def members(batch: Batch) -> list[object]:
    return batch._members  # type: ignore[return-value]


async def asked(rounds: TurnRounds, *episodes: tuple[str, int]) -> list["asyncio.Task[Seat]"]:
    """Lets episodes ask for their turns, and returns what becomes of it."""
    asking = [asyncio.create_task(rounds.seat(episode)) for episode in episodes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


async def test_nobody_waits_for_an_episode_that_has_ended_or_a_group_that_is_dropped() -> None:
    rounds = TurnRounds("round", EPISODES)
    (waiting,) = await asked(rounds, EPISODES[2])
    rounds.leave(EPISODES[0])
    assert not waiting.done()
    rounds.leave_group("a")
    await asyncio.sleep(0)
    assert members(waiting.result().batch) == [EPISODES[2]]
    (alone,) = await asked(rounds, EPISODES[0])
    assert not alone.done(), "it has begun again, and the other one is still under way"
    rounds.leave(EPISODES[2])
    await asyncio.sleep(0)
    assert members(alone.result().batch) == [EPISODES[0]] and alone.result().batch is not waiting.result().batch
