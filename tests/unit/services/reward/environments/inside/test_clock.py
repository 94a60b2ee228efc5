"""The time limits of calls that share an event loop, in virtual time: what computes moves the clock itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.reward.environments.inside.main import TimedLoop, limited

TIMEOUT_S = 1.0
STEP_S = 0.125


class VirtualLoop(TimedLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now_s

    async def compute(self) -> None:
        for _ in range(1_000):
            self.now_s += STEP_S
            await asyncio.sleep(0)


Work = Callable[[VirtualLoop], Awaitable[None]]


def play(work: Work, *, beside: Work, max_others_s: float = 100.0) -> tuple[bool, float]:
    """Returns whether a call was in time while something goes on beside it, and when it ended."""

    async def limited_call(loop: VirtualLoop) -> tuple[bool, float]:
        try:
            async with asyncio.timeout(None) as limit:
                with limited(limit, TIMEOUT_S, max_others_s):
                    await work(loop)
        except TimeoutError:
            assert limit.expired(), "something else raised it"
        return not limit.expired(), loop.now_s

    async def both(loop: VirtualLoop) -> tuple[bool, float]:
        call = asyncio.create_task(limited_call(loop))
        other = asyncio.ensure_future(beside(loop))
        ended = await call
        other.cancel()
        return ended

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(both(loop))


async def nothing(loop: VirtualLoop) -> None:
    pass


async def wait(loop: VirtualLoop) -> None:
    """Takes no time but that of others."""
    for _ in range(50):
        await asyncio.sleep(0)


async def compute_for_ever(loop: VirtualLoop) -> None:
    await loop.compute()


async def compute_in_a_task(loop: VirtualLoop) -> None:
    await asyncio.create_task(loop.compute())


def test_a_call_does_not_pay_for_what_others_compute() -> None:
    in_time, ended_s = play(wait, beside=compute_for_ever)
    assert in_time and ended_s > 4 * TIMEOUT_S, f"it ended after {ended_s:g} s, most of them those of others"


@pytest.mark.parametrize("work", [compute_for_ever, compute_in_a_task])
def test_a_call_pays_for_what_it_computes_itself(work: Work) -> None:
    in_time, ended_s = play(work, beside=nothing)
    assert not in_time and ended_s == pytest.approx(TIMEOUT_S, abs=0.5)


def test_a_call_between_others_ends_when_its_own_share_is_used_up() -> None:
    in_time, ended_s = play(compute_for_ever, beside=compute_for_ever)
    assert not in_time and ended_s == pytest.approx(2 * TIMEOUT_S, abs=0.5), f"it ended after {ended_s:g} s"


def test_others_put_a_limit_off_no_longer_than_agreed() -> None:
    async def wait_long(loop: VirtualLoop) -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)

    in_time, ended_s = play(wait_long, beside=compute_for_ever, max_others_s=2.0)
    assert not in_time and ended_s == pytest.approx(TIMEOUT_S + 2.0, abs=0.5), f"it ended after {ended_s:g} s"
