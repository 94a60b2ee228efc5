import asyncio
import random

import pytest

from services.coordinator.rollout.buffer import PacingBuffer


def make(max_staleness: int = 1, per_step: int = 2, last: int = 10**9, max_refills: int = 0) -> PacingBuffer[int]:
    return PacingBuffer(
        capacity=(max_staleness + 1) * per_step,
        groups_per_step=per_step,
        max_refills=max_refills,
        first_order_number=0,
        last_order_number=lambda _: last,
    )


async def test_a_slot_stays_charged_until_it_is_released() -> None:
    buffer = make(max_staleness=0, per_step=2)
    assert [await buffer.admit(), await buffer.admit()] == [0, 1]
    third = asyncio.create_task(buffer.admit())
    for number in (0, 1):
        await buffer.settle(number, number)
    assert await buffer.take() == [0, 1]
    await asyncio.sleep(0)
    assert not third.done(), "taking a group freed its slot before its weights were published"
    await buffer.release()
    assert await third == 2


async def test_groups_are_taken_in_order_whatever_order_they_settle_in() -> None:
    buffer = make(max_staleness=1, per_step=2)
    for _ in range(4):
        await buffer.admit()
    taking = asyncio.create_task(buffer.take())
    for number in (3, 1, 2):
        await buffer.settle(number, number)
    await asyncio.sleep(0)
    assert not taking.done() and buffer.waiting_for() == [0]
    await buffer.settle(0, 0)
    assert await taking == [0, 1]


async def test_no_group_is_admitted_beyond_those_that_the_run_needs() -> None:
    buffer = make(max_staleness=3, per_step=2, last=1)
    assert [await buffer.admit(), await buffer.admit()] == [0, 1]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await buffer.admit()


async def test_a_group_without_signal_is_replaced_at_once_by_one_at_the_tail() -> None:
    buffer = make(max_staleness=0, per_step=2, max_refills=2)
    assert [await buffer.admit(), await buffer.admit()] == [0, 1]
    replacement = asyncio.create_task(buffer.admit())
    await buffer.settle(1, 1, has_signal=False)
    assert await replacement == 2, "group 0 has not settled, but group 1 is certainly in this step"
    await buffer.settle(0, 0)
    await buffer.settle(2, 2)
    assert await buffer.take() == [0, 1, 2]


async def test_past_the_cap_the_step_takes_the_groups_that_there_are() -> None:
    buffer = make(max_staleness=0, per_step=2, max_refills=1)
    for number in (0, 1):
        await buffer.admit()
        await buffer.settle(number, number, has_signal=False)
    assert await buffer.admit() == 2, "one refill"
    assert buffer.num_charged == 2, f"{buffer.num_charged} slots are charged, of 2"
    await buffer.settle(2, 2)
    assert await buffer.take() == [0, 1, 2]


async def test_a_group_after_the_window_keeps_its_slot_until_the_window_reaches_it() -> None:
    buffer = make(max_staleness=1, per_step=2, max_refills=4)
    for _ in range(4):
        await buffer.admit()
    await buffer.settle(2, 2, has_signal=False)
    assert buffer.num_charged == 4, "it is not certain yet which step takes group 2"
    await buffer.settle(0, 0, has_signal=False)
    assert buffer.num_charged == 2, "the window reaches group 2, and both slots are freed"
    assert buffer.waiting_for() == [1, 3]


async def _pace(max_staleness: int, max_refills: int, chance_of_signal: float, seed: int) -> tuple[list[int], int]:
    """Paces groups with random latencies; returns the staleness of trained groups, and the most groups of a step."""
    per_step, num_steps = 3, 60
    buffer: PacingBuffer[tuple[int, bool]] = make_pairs(max_staleness, per_step, max_refills)
    rng = random.Random(seed)
    version, ages, widest = 0, [], 0

    async def sample(order_number: int) -> None:
        issued_under = version
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        has_signal = rng.random() < chance_of_signal
        await buffer.settle(order_number, (issued_under, has_signal), has_signal=has_signal)

    async def issue(tasks: asyncio.TaskGroup) -> None:
        while True:
            tasks.create_task(sample(await buffer.admit()))

    async with asyncio.TaskGroup() as tasks:
        issuing = tasks.create_task(issue(tasks))
        for _ in range(num_steps):
            groups = await buffer.take()
            with_signal = [issued_under for issued_under, has_signal in groups if has_signal]
            widest = max(widest, len(groups))
            assert len(with_signal) == per_step or len(groups) == per_step + max_refills, (
                f"{len(with_signal)} of {len(groups)} groups have a signal"
            )
            ages += [version - issued_under for issued_under, _ in groups]
            for _ in range(rng.randrange(4)):  # Other groups settle while the learner trains.
                await asyncio.sleep(0)
            if with_signal and rng.random() < 0.9:  # Otherwise the step is skipped: the version stays.
                version += 1
            await buffer.release()
            assert buffer.num_charged <= (max_staleness + 1) * per_step
        issuing.cancel()
    return ages, widest


def make_pairs(max_staleness: int, per_step: int, max_refills: int) -> PacingBuffer[tuple[int, bool]]:
    return PacingBuffer(
        capacity=(max_staleness + 1) * per_step,
        groups_per_step=per_step,
        max_refills=max_refills,
        first_order_number=0,
        last_order_number=lambda _: 10**9,
    )


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_staleness_reaches_its_bound_and_never_passes_it(max_staleness: int) -> None:
    ages, _ = await _pace(max_staleness, 0, 1.0, seed=max_staleness)
    assert max(ages) == max_staleness, f"worst staleness {max(ages)} for a bound of {max_staleness}"


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("max_refills", [3, 6])
@pytest.mark.parametrize("chance_of_signal", [0.1, 0.5, 0.9])
async def test_staleness_keeps_its_bound_under_active_sampling(
    max_staleness: int, max_refills: int, chance_of_signal: float
) -> None:
    for seed in range(5):
        ages, widest = await _pace(max_staleness, max_refills, chance_of_signal, seed)
        assert max(ages) <= max_staleness, f"worst staleness {max(ages)} for a bound of {max_staleness}, seed {seed}"
        assert widest > 3 or chance_of_signal == 0.9, "no step had a refill"


async def test_a_round_has_all_free_slots_and_begins_when_nothing_is_being_sampled() -> None:
    buffer = make(max_staleness=0, per_step=3, max_refills=3, last=6)
    assert list(await buffer.admit_round()) == [0, 1, 2]
    following = asyncio.create_task(buffer.admit_round())
    await buffer.settle(1, 1, has_signal=False)
    await buffer.settle(0, 0, has_signal=False)
    await asyncio.sleep(0)
    assert not following.done(), "it would begin beside group 2, at a moment that depends on the clock"
    await buffer.settle(2, 2)
    assert list(await following) == [3, 4]
    for number in (3, 4):
        await buffer.settle(number, number)
    following = asyncio.create_task(buffer.admit_round())
    assert await buffer.take() == [0, 1, 2, 3, 4]
    await asyncio.sleep(0)
    assert not following.done()
    await buffer.release()
    assert list(await following) == [5, 6], "the run needs no others"


async def test_groups_that_wait_are_judged_again_and_those_without_a_signal_then_are_replaced() -> None:
    buffer = make(max_staleness=0, per_step=2, max_refills=2)
    for number in (await buffer.admit(), await buffer.admit()):
        await buffer.settle(number, number)
    replacement = asyncio.create_task(buffer.admit())
    assert not buffer.waiting_for()
    await buffer.judge_again(lambda group: (group + 10, group != 1))
    assert await replacement == 2 and buffer.waiting_for() == [2]
    await buffer.settle(2, 2)
    assert await buffer.take() == [10, 11, 2]


async def test_a_group_that_was_replaced_stays_without_a_signal_so_that_no_step_has_more_than_its_groups() -> None:
    buffer = make(max_staleness=0, per_step=2, max_refills=1)
    for number in (await buffer.admit(), await buffer.admit()):
        await buffer.settle(number, number, has_signal=False)
    await buffer.settle(await buffer.admit(), 2)
    await buffer.judge_again(lambda group: (group + 10, True))
    assert await buffer.take() == [0, 11, 12], "group 2 took the place of group 0"


async def test_groups_that_are_taken_are_not_judged_again() -> None:
    buffer = make(max_staleness=1, per_step=1)
    for _ in range(2):
        await buffer.settle(number := await buffer.admit(), number)
    assert await buffer.take() == [0]
    judged = []
    await buffer.judge_again(lambda group: (judged.append(group) or group, True))
    assert judged == [1]
