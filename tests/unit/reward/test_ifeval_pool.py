"""Instruction checkers in the processes of the pool, under answers and labels that mean harm."""

import json
import random
import time
from collections.abc import AsyncIterator

import pytest

from services.reward.pool import VerifierPool
from shoal.rollout import ScoreOutcome

pytest.importorskip("punkt")
pytest.importorskip("langdetect")

# Seconds of work at most; the rest is for a machine that is busy with other tests.
TIMEOUT_S = 60.0
SENTENCES = {
    "instruction_id": ["length_constraints:number_sentences", "count:count_unique", "first_word:first_word_sent"],
    "kwargs": [{"num_sentences": 3, "relation": "at least"}, None, {"first_word": "We"}],
}


@pytest.fixture
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(num_processes=1, timeout_s=TIMEOUT_S)
    await pool.start()
    yield pool
    await pool.close()


async def test_a_catastrophic_expression_ends_by_the_deadline_and_the_next_answer_is_judged() -> None:
    pool = VerifierPool(num_processes=1, timeout_s=2.0)
    await pool.start()
    label = json.dumps({"instruction_id": ["keywords:word_once"], "kwargs": [{"keyword": "(a+)+$"}]})
    # Loading, and starting anew after the kill, are outside the deadline.
    assert (await pool.judge("ifeval", "a", label)).value == 1.0
    started = time.monotonic()
    score = await pool.judge("ifeval", "a" * 60 + "b", label)
    took = time.monotonic() - started
    assert score.outcome is ScoreOutcome.FAILED, f"{score}"
    assert took < 10.0, f"took {took:.1f} s"
    score = await pool.judge("ifeval", "a", label)
    await pool.close()
    assert (score.outcome, score.value) == (ScoreOutcome.SCORED, 1.0), f"{score}"


async def test_an_invalid_expression_is_unscorable_and_never_zero(pool: VerifierPool) -> None:
    label = {"instruction_id": ["keywords:existence"], "kwargs": [{"keywords": ["c++("]}]}
    score = await pool.judge("ifeval", "c++(", label)
    assert score.outcome is ScoreOutcome.UNSCORABLE and "keywords is no regular expression" in score.detail, f"{score}"
    assert (await pool.judge("ifeval_strict", "c++(", label)).value == 1.0


@pytest.mark.parametrize("piece", ["\ud800! ", "["])
async def test_a_million_characters_are_judged_before_the_deadline(pool: VerifierPool, piece: str) -> None:
    score = await pool.judge("ifeval", f"We {piece * (1_000_000 // len(piece))}!", SENTENCES)
    assert score.outcome is ScoreOutcome.SCORED, f"{piece!r}: {score}"


async def test_a_million_characters_of_which_no_two_words_are_alike_are_judged(pool: VerifierPool) -> None:
    drawn = random.Random(0)
    text = " ".join(f"w{drawn.getrandbits(40):x} {drawn.choice(['Go', 'then', 'u.s.'])}." for _ in range(60_000))
    score = await pool.judge("ifeval", text, SENTENCES)
    assert score.outcome is ScoreOutcome.SCORED, f"{score}"
