"""Rounds of turns of a deterministic run."""

import asyncio

from services.coordinator.workers.batches import Batch, Seat
from services.coordinator.workers.turn_batches import TurnRounds, turn_rounds_of

EPISODES = [("a", 0), ("a", 1), ("b", 0)]


def members(batch: Batch) -> list[object]:
    return batch._members  # type: ignore[return-value]


async def asked(rounds: TurnRounds, *episodes: tuple[str, int]) -> list["asyncio.Task[Seat]"]:
    """Lets episodes ask for their turns, and returns what becomes of it."""
    asking = [asyncio.create_task(rounds.seat(episode)) for episode in episodes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


async def test_a_round_begins_when_all_that_are_under_way_have_asked_and_has_their_order() -> None:
    rounds = TurnRounds("round", EPISODES)
    late, first = await asked(rounds, EPISODES[2], EPISODES[0])
    assert not late.done() and not first.done()
    (last,) = await asked(rounds, EPISODES[1])
    seats = [task.result() for task in (late, first, last)]
    assert len({seat.batch for seat in seats}) == 1 and members(seats[0].batch) == EPISODES
    assert [seat.member for seat in seats] == [EPISODES[2], EPISODES[0], EPISODES[1]]


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


def test_the_groups_of_a_batch_share_rounds() -> None:
    one, other = Batch("one", ["a", "b"]), Batch("other", ["c"])
    seats = {"a": Seat(one, "a"), "b": Seat(one, "b"), "c": Seat(other, "c")}
    rounds = turn_rounds_of(seats, lambda group: 2)
    assert rounds["a"] is rounds["b"] and rounds["a"] is not rounds["c"]
