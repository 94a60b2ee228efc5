"""Tests of the instruction checkers in pool processes, with hostile answers and labels."""

import json
import random
import time
from collections.abc import AsyncIterator

import pytest

from services.reward.pool.pool import VerifierPool
from shoal.scores import ScoreOutcome

pytest.importorskip("punkt")
pytest.importorskip("langdetect")

# The work takes a few seconds; the margin is for a machine that is busy with other tests.
TIMEOUT_S = 60.0
SENTENCES = {
    "instruction_id": ["length_constraints:number_sentences", "count:count_unique", "first_word:first_word_sent"],
    "kwargs": [{"num_sentences": 3, "relation": "at least"}, None, {"first_word": "We"}],
}


@pytest.fixture
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(num_processes=1, timeout_s=TIMEOUT_S, options={"ifeval": {"timeout_s": TIMEOUT_S}})
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.parametrize(
    ("verifier_timeout_s", "outcome", "num_restarts"),
    [(1.0, ScoreOutcome.UNSCORABLE, 0), (TIMEOUT_S, ScoreOutcome.FAILED, 1)],
)
async def test_a_catastrophic_expression_ends_at_the_deadline_and_the_next_answer_is_judged(
    verifier_timeout_s: float, outcome: ScoreOutcome, num_restarts: int
) -> None:
    pool = VerifierPool(num_processes=1, timeout_s=2.0, options={"ifeval": {"timeout_s": verifier_timeout_s}})
    await pool.start()
    label = json.dumps({"instruction_id": ["keywords:word_once"], "kwargs": [{"keyword": "(a+)+$"}]})
    try:
        # Load the models first, outside the deadline.
        assert (await pool.judge("ifeval", "a", label)).value == 1.0
        started = time.monotonic()
        score = await pool.judge("ifeval", "a" * 60 + "b", label)
        duration_s = time.monotonic() - started
        assert score.outcome is outcome, f"{score}"
        assert duration_s < TIMEOUT_S / 2, f"took {duration_s:.1f} s"
        score = await pool.judge("ifeval", "a", label)
        assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), f"{score}"
        assert pool.num_restarts == num_restarts, f"{pool.num_restarts} processes were replaced"
    finally:
        await pool.close()


@pytest.mark.parametrize("piece", ["\ud800! ", "["])
async def test_300_000_characters_are_judged_before_the_deadline(pool: VerifierPool, piece: str) -> None:
    score = await pool.judge("ifeval", f"We {piece * (300_000 // len(piece))}!", SENTENCES)
    assert score.outcome is ScoreOutcome.SCORED, f"{piece!r}: {score}"


async def test_20_000_distinct_words_are_judged(pool: VerifierPool) -> None:
    generator = random.Random(0)
    text = " ".join(
        f"w{generator.getrandbits(40):x} {generator.choice(['Go', 'then', 'u.s.'])}." for _ in range(20_000)
    )
    score = await pool.judge("ifeval", text, SENTENCES)
    assert score.outcome is ScoreOutcome.SCORED, f"{score}"
