"""The seats of the groups that are issued together."""

import asyncio

import pytest

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.rounds import Rounds, TurnRounds
from services.coordinator.workers.deterministic_batches import Batch, Seat
from shoal.rollout import WeightVersion
from tests.support.configs import run_config


def rounds(baseline: str) -> Rounds:
    config = run_config(
        run={"deterministic": True, "num_threads": 1},
        grpo={"max_staleness": 0, "group_size": 3},
        advantage={"baseline": baseline, "scale": "none"},
        generator={"dtype": "float32", "max_num_seqs": 8},
        learner={"compute_dtype": "float32"},
    )
    return Rounds(config, "run", CurrentVersion(WeightVersion(2, 5)))


@pytest.mark.parametrize(("baseline", "has_greedy"), [("group_mean", False), ("greedy", True)])
def test_groups_of_a_round_share_batches_with_their_greedy_samples(baseline: str, has_greedy: bool) -> None:
    these = rounds(baseline)
    these.begin(range(4, 8))
    first, *others = [these.seat(number, is_greedy=False) for number in range(4, 8)]
    assert first is not None
    shared = [seat is not None and seat.batch is first.batch for seat in others]
    assert shared == [True, False, False], "a generator samples 8 completions at once: two groups"
    greedy = these.seat(5, is_greedy=True)
    assert (greedy is not None and greedy.batch is first.batch) is has_greedy
    assert these.seat(8, is_greedy=False) is None
    these.end(4)
    assert these.seat(4, is_greedy=False) is None


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
