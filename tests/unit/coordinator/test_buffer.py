import asyncio
import random

import pytest

from services.coordinator.buffer import PacingBuffer
from shoal.grpo.staleness import capacity


def make(max_staleness: int = 1, per_step: int = 2, last: int = 10**9) -> PacingBuffer[int]:
    return PacingBuffer(
        capacity=capacity(max_staleness, per_step), first_order_number=0, last_order_number=lambda: last
    )


async def test_a_slot_is_held_until_it_is_released() -> None:
    buffer = make(max_staleness=0, per_step=2)
    assert [await buffer.admit(), await buffer.admit()] == [0, 1]
    third = asyncio.create_task(buffer.admit())
    for number in (0, 1):
        await buffer.settle(number, number)
    assert await buffer.take(2) == [0, 1]
    await asyncio.sleep(0)
    assert not third.done(), "taking a group freed its slot before its weights were published"
    await buffer.release()
    assert await third == 2


async def test_groups_are_taken_in_order_whatever_order_they_settle_in() -> None:
    buffer = make(max_staleness=1, per_step=2)
    for _ in range(4):
        await buffer.admit()
    taking = asyncio.create_task(buffer.take(2))
    for number in (3, 1, 2):
        await buffer.settle(number, number)
    await asyncio.sleep(0)
    assert not taking.done() and buffer.waiting_for(2) == [0]
    await buffer.settle(0, 0)
    assert await taking == [0, 1]


async def test_nothing_is_admitted_beyond_what_the_run_needs() -> None:
    buffer = make(max_staleness=3, per_step=2, last=1)
    assert [await buffer.admit(), await buffer.admit()] == [0, 1]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await buffer.admit()


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_staleness_reaches_its_bound_and_never_passes_it(max_staleness: int) -> None:
    """Random latencies on a virtual clock: sleeps of 0 to 5 turns of the event loop."""
    per_step, num_steps = 3, 60
    buffer: PacingBuffer[int] = make(max_staleness, per_step)
    rng = random.Random(max_staleness)
    version, ages = 0, []

    async def sample(order_number: int) -> None:
        issued_under = version
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        await buffer.settle(order_number, issued_under)

    async def issue(tasks: asyncio.TaskGroup) -> None:
        while True:
            tasks.create_task(sample(await buffer.admit()))

    async with asyncio.TaskGroup() as tasks:
        issuing = tasks.create_task(issue(tasks))
        for _ in range(num_steps):
            ages += [version - issued_under for issued_under in await buffer.take(per_step)]
            if rng.random() < 0.9:  # Else the step is skipped: the slots are released, the version stays.
                version += 1
            await buffer.release()
        issuing.cancel()
    assert max(ages) == max_staleness, f"worst staleness {max(ages)} for a bound of {max_staleness}"
