"""Whatever a model writes, each verifier ends in time with an outcome that means what it says."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.reward.deadline import deadline
from services.reward.pool import VerifierPool
from services.reward.verdict import Unscorable
from shoal.rollout import ScoreOutcome

LABELS: dict[str, Any] = {
    "gsm8k": "5",
    "math": "5",
    "strict_math": "5",
    "exact_string": "5",
    "string_matcher": "5",
    "string_f1": "5",
    "puzzle": "5",
    "flan": "5",
    "re_search": "5",
    "re_search_f1": "5",
    "regex": "[0-9]{7}",
    "json_schema": {"type": "integer"},
    "multiple_choice": "B",
    "r1_format": "",
    "think_format": "",
}
MILLION = 1_000_000
HOSTILE = {
    "empty": "",
    "a million letters": "x" * MILLION,
    "a million digits": "1" * MILLION,
    "a million spaces": " " * MILLION,
    "a million dollars": "$" * MILLION,
    "tags without end": "<answer>" * (MILLION // 8),
    "ends of tags": "</think> </answer>" * (MILLION // 18),
    "open boxes": r"\boxed{" * (MILLION // 7),
    "parentheses": "(A " * (MILLION // 3),
    "nested fractions": r"\frac{" * 20_000 + "1" + "}{2}" * 20_000,
    "nested roots in a box": r"$\boxed{" + r"\sqrt{" * 500 + "2" + "}" * 500 + "}$",
    "nested lists": "[" * MILLION,
    "lone surrogates": "\ud800" * 1000 + "\udfff",
    "nul bytes": "\0" * 1000,
    "dots and commas": "1,.-" * (MILLION // 4),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(num_processes=1, timeout_s=60.0)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("verifier", sorted(LABELS))
async def test_hostile_text_is_worth_nothing_or_cannot_be_judged_and_breaks_no_verifier(
    pool: VerifierPool, verifier: str
) -> None:
    for kind, completion in HOSTILE.items():
        started = time.monotonic()
        score = await pool.judge(verifier, completion, LABELS[verifier])
        took = time.monotonic() - started
        where = f"{verifier} on {kind}: {score.outcome} {score.value} {score.detail[:80]!r} after {took:.1f} s"
        assert score.outcome in (ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE), where
        paid_rightly = (verifier, kind) == ("regex", "a million digits")
        assert score.value == (1.0 if paid_rightly else 0.0) or verifier == "json_schema", where
    assert pool.num_restarts == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_right_answer_after_a_million_characters_is_found(pool: VerifierPool) -> None:
    thoughts = "We try 1, then 2. " * (MILLION // 18)
    for verifier in ("gsm8k", "math"):
        score = await pool.judge(verifier, thoughts + r"So it is $\boxed{5}$.", "5")
        assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), f"{verifier}: {score}"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pattern_that_takes_for_ever_makes_the_completion_unscorable_and_keeps_the_process(
    pool: VerifierPool,
) -> None:
    score = await pool.judge("regex", "a" * 5000 + "!", r"\A(?:a|aa)+\Z")
    assert score.outcome is ScoreOutcome.UNSCORABLE, score
    assert "timeout_s" in score.detail
    assert pool.num_restarts == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_schema_with_a_pattern_that_takes_for_ever_makes_the_completion_unscorable(pool: VerifierPool) -> None:
    score = await pool.judge("json_schema", '"' + "a" * 5000 + '!"', {"pattern": "^(a|aa)+$"})
    assert score.outcome is ScoreOutcome.UNSCORABLE, score
    assert pool.num_restarts == 0


def test_a_deadline_interrupts_what_catches_every_exception() -> None:
    def stubborn() -> None:
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass

    started = time.monotonic()
    with pytest.raises(Unscorable, match=r"it took longer than 0\.2 s"), deadline(0.2, "it"):
        stubborn()
    assert time.monotonic() - started < 10
