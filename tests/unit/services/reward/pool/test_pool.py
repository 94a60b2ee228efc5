"""Tests of the pool of verifier processes, which stop and kill real processes."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from services.reward.pool.pool import VerifierPool
from shoal.errors import Unavailable
from shoal.scores import ScoreOutcome


@pytest.fixture
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(num_processes=2, timeout_s=20.0)
    await pool.start()
    yield pool
    await pool.close()


async def stop_all(pool: VerifierPool) -> list[int]:
    """Freezes every process, so that the next completions are certainly in progress; returns the pids."""
    for pid in pool.pids:
        os.kill(pid, signal.SIGSTOP)
    return pool.pids


async def until_all_but(pool: VerifierPool, gone: list[int]) -> None:
    """Waits until each of these processes is replaced by a running one."""
    async with asyncio.timeout(60):
        pids = pool.pids
        while set(pids) & set(gone) or len(pids) < 2 or 0 in pids:
            await asyncio.sleep(0.02)
            pids = pool.pids


async def test_a_completion_whose_process_dies_is_judged_by_another_process(pool: VerifierPool) -> None:
    pids = await stop_all(pool)
    judging = asyncio.gather(*(pool.judge("gsm8k", "5", "5") for _ in range(2)))
    await asyncio.sleep(0)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert [(score.outcome, score.value) for score in await judging] == [(ScoreOutcome.SCORED, 1.0)] * 2
    await until_all_but(pool, pids)
    assert pool.num_restarts == 2


async def test_a_completion_that_arrives_after_close_is_failed() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=20.0)
    await pool.start()
    await pool.close()
    async with asyncio.timeout(60):
        score = await pool.judge("gsm8k", "5", "5")
    assert (score.outcome, score.detail) == (ScoreOutcome.FAILED, "the pool was closed")


async def test_a_completion_whose_process_dies_twice_is_failed() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=60.0, options={"regex": {"timeout_s": 600.0}})
    await pool.start()
    judging = asyncio.create_task(pool.judge("regex", "a" * 5000 + "!", r"\A(?:a|aa)+\Z"))
    for num_deaths in range(2):
        async with asyncio.timeout(60):
            running = 0
            while not running or pool.num_restarts < num_deaths:
                await asyncio.sleep(0.02)
                running = pool.num_running
        os.kill(pool.pids[0], signal.SIGKILL)
    score = await judging
    assert score.outcome is ScoreOutcome.FAILED
    assert "signal 9" in score.detail
    await pool.close()


async def test_a_process_that_dies_idle_is_replaced(pool: VerifierPool) -> None:
    pids = pool.pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await until_all_but(pool, pids)
    assert (await pool.judge("gsm8k", "5", "5")).value == 1.0


async def test_a_process_that_hangs_is_killed_at_the_deadline() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=1.0)
    await pool.start()
    [pid] = await stop_all(pool)
    score = await pool.judge("gsm8k", "5", "5")
    assert (score.outcome, score.value) == (ScoreOutcome.FAILED, 0.0)
    assert score.duration_s >= 1.0
    assert (await pool.judge("gsm8k", "6", "6")).outcome is ScoreOutcome.SCORED
    await pool.close()
    assert not psutil.pid_exists(pid)


async def test_closing_fails_every_waiting_completion_and_ends_every_process() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=60.0)
    await pool.start()
    pids = await stop_all(pool)
    judging = [asyncio.create_task(pool.judge("gsm8k", "5", "5")) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.close()
    outcomes = [score.outcome for score in await asyncio.gather(*judging)]
    assert outcomes == [ScoreOutcome.FAILED] * 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    ("program", "why"), [(shutil.which("false"), "ended as they started"), ("/nonexistent/python", "can be started")]
)
async def test_a_pool_whose_processes_exit_at_once_or_cannot_be_started_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    pool = VerifierPool(num_processes=1, timeout_s=1.0)
    with pytest.raises(Unavailable, match=why):
        await pool.start()
    await pool.close()


async def test_a_flood_of_completions_that_take_long_does_not_hold_up_others_of_its_verifier() -> None:
    pool = VerifierPool(num_processes=2, timeout_s=600.0, options={"regex": {"timeout_s": 300.0}})
    await pool.start()
    bomb, pattern = "a" * 64 + "!", "^(a|aa)+$"
    flood = [asyncio.create_task(pool.judge("regex", bomb, pattern, group=str(index % 4))) for index in range(32)]
    answers = [await pool.judge("regex", f"it is {number}", str(number), group="answers") for number in range(50)]
    assert [score.value for score in answers] == [1.0] * 50, "the flood would take 80 minutes"
    assert not any(task.done() for task in flood)
    await pool.close()
    assert {(await task).outcome for task in flood} == {ScoreOutcome.FAILED}


async def test_a_process_that_gets_no_cpu_is_not_killed_for_not_stopping() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=600.0)
    await pool.start()
    [pid] = await stop_all(pool)
    judging = [asyncio.create_task(pool.judge("gsm8k", "5", "5")) for _ in range(2)]
    await asyncio.sleep(2.5)  # Longer than a slice and the time to stop.
    os.kill(pid, signal.SIGCONT)
    scores = [(score.outcome, score.value) for score in await asyncio.gather(*judging)]
    assert scores == [(ScoreOutcome.SCORED, 1.0)] * 2
    assert (pool.pids, pool.num_restarts) == ([pid], 0)
    await pool.close()
