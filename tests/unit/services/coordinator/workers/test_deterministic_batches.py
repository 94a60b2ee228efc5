"""Batches of a deterministic run: what shares one, and what happens when a member of it fails."""

import asyncio
from typing import Any

import pytest

from services.coordinator.workers.deterministic_batches import Seat, Trial, seats_of
from shoal.config import RunConfig
from tests.support.configs import run_config
from tests.support.waiting import settled


def config(*, num_generators: int = 2, max_num_seqs: int = 64, deterministic: bool = True) -> RunConfig:
    return run_config(
        run={"deterministic": deterministic, "num_threads": 1},
        grpo={"max_staleness": 0},
        generator={"dtype": "float32", "max_num_seqs": max_num_seqs},
        learner={"compute_dtype": "float32"},
        launch={"num_generators": num_generators},
    )


def members_of(seats: dict[int, Seat]) -> list[list[int]]:
    batches: dict[int, list[int]] = {}
    for member, seat in seats.items():
        batches.setdefault(id(seat.batch), []).append(member)
    return list(batches.values())


@pytest.mark.parametrize(
    ("num_groups", "settings", "expected"),
    [
        (5, {}, [[0, 1], [2, 3, 4]]),
        (1, {}, [[0]]),
        (6, {"max_num_seqs": 8}, [[0, 1], [2, 3], [4, 5]]),
        (3, {"max_num_seqs": 2, "num_generators": 1}, [[0], [1], [2]]),
    ],
)
def test_groups_are_divided_by_configuration_and_order_alone(
    num_groups: int, settings: dict[str, Any], expected: list[list[int]]
) -> None:
    groups = [[number] for number in range(num_groups)]
    seats = seats_of(groups, name="round", num_completions=4, config=config(**settings))
    assert members_of(seats) == expected


def test_a_usual_run_has_no_batches() -> None:
    assert seats_of([[0], [1]], name="round", num_completions=4, config=config(deterministic=False)) == {}


class Member:
    def __init__(self, seat: Seat) -> None:
        self.trial: Trial | None = None
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._take_part(seat))

    async def _take_part(self, seat: Seat) -> None:
        async with seat.batch.trial(seat.member, 4) as self.trial:
            await self.may_end.wait()


def seats(num: int) -> list[Seat]:
    groups = [[number] for number in range(num)]
    return list(seats_of(groups, name="r", num_completions=4, config=config(num_generators=1)).values())


async def test_no_member_goes_on_before_all_are_in_nor_before_all_are_sampled() -> None:
    a, b, c = seats(3)
    members = [Member(c), Member(a)]
    await settled()
    assert [member.trial for member in members] == [None, None]
    members.append(Member(b))
    await settled()
    (trial,) = {member.trial for member in members}
    assert trial is not None and trial.sizes == (4, 4, 4)
    assert [trial.place(number).index for number in range(3)] == [0, 1, 2], "the order of arrival counts"
    members[0].may_end.set()
    members[1].may_end.set()
    await settled()
    assert not any(member.task.done() for member in members)
    members[2].may_end.set()
    await asyncio.gather(*(member.task for member in members))


async def test_the_others_do_not_wait_for_a_member_that_is_given_up_or_gone() -> None:
    a, b, c = seats(3)
    gone = Member(c)
    await settled()
    gone.task.cancel()
    members = [Member(a), Member(b)]
    await settled()
    assert members[0].trial is None
    c.leave()
    await settled()
    assert members[0].trial is not None and members[0].trial.sizes == (4, 4)
    for member in members:
        member.may_end.set()
    await asyncio.gather(*(member.task for member in members))
