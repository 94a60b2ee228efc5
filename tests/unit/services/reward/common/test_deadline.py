"""Tests of deadlines inside a verifier and their outcomes."""

import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.reward.common import deadline
from services.reward.common.deadline import within
from services.reward.common.verdict import Unscorable
from services.reward.pool.pool import VerifierPool
from shoal.scores import ScoreOutcome


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(num_processes=1, timeout_s=60.0)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_correct_answer_after_300_000_characters_is_found(pool: VerifierPool) -> None:
    thoughts = "We try 1, then 2. " * 16_667
    for verifier in ("gsm8k", "math"):
        score = await pool.judge(verifier, thoughts + r"So it is $\boxed{5}$.", "5")
        assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), f"{verifier}: {score}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("verifier", "completion", "label", "why"),
    [
        ("regex", "a" * 5000 + "!", r"\A(?:a|aa)+\Z", "timeout_s"),
        ("json_schema", '"' + "a" * 5000 + '!"', {"pattern": "^(a|aa)+$"}, "2 s"),
    ],
)
async def test_a_catastrophic_pattern_makes_the_completion_unscorable_and_keeps_the_process(
    pool: VerifierPool, verifier: str, completion: str, label: Any, why: str
) -> None:
    score = await pool.judge(verifier, completion, label)
    assert score.outcome is ScoreOutcome.UNSCORABLE and why in score.detail, score
    assert pool.num_restarts == 0


def never_end() -> None:
    while True:
        pass


def test_a_deadline_interrupts_code_that_catches_every_exception() -> None:
    def stubborn() -> None:
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass

    started = time.monotonic()
    with pytest.raises(Unscorable, match=r"^it .*0\.2 s"):
        within(0.2, "it", stubborn)
    assert time.monotonic() - started < 10


def test_a_ring_after_the_block_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timer = signal.setitimer
    late: list[float] = []

    def ring_before_the_end(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if seconds == 0:
            late.append(seconds)
            signal.raise_signal(signal.SIGALRM)
        return set_timer(signal.ITIMER_REAL, seconds, interval)

    monkeypatch.setattr(signal, "setitimer", ring_before_the_end)
    assert within(60, "it", lambda: 5) == 5
    with pytest.raises(Unscorable):
        within(0.05, "it", never_end)
    assert len(late) == 2


def test_a_ring_at_any_moment_interrupts_the_function_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm first rings after a few microseconds, before, within or after functions that take as long. On a busy
    machine it may not ring again as soon, or nothing else would run."""
    monkeypatch.setattr(deadline, "_INTERVAL_S", 1e-3)
    results: Counter[str] = Counter()
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)  # The last ring may come late.
    for number in range(10_000):
        try:
            results[within(1e-6 * (1 + number % 20), "it", lambda: "returned")] += 1
        except Unscorable:
            results["unscorable"] += 1
    signal.signal(signal.SIGALRM, before)
    assert results["returned"] + results["unscorable"] == 10_000 and len(results) == 2, dict(results)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadline_that_falls_into_a_destructor_rings_again() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(10)  # Python drops what interrupts a destructor.

    def drop() -> None:
        Slow()
        never_end()

    with pytest.raises(Unscorable):
        within(0.2, "it", drop)
