"""Judges and reward models behind servers that answer with anything: each outcome is a verdict, in time and memory.

`SHOAL_FUZZ_S` sets the seconds of arbitrary answers to each, `SHOAL_FUZZ_SEED` their seed.
"""

import asyncio
import math
import os
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.reward.common import http_endpoint
from services.reward.judge.judge import Judge
from services.reward.model.endpoint import ModelEndpoint
from services.reward.model.scorer import ModelScorer
from shoal.config.tables.judge import JudgeConfig
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.conversation import ChatMessage
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.wire import score_to_wire
from tests.support.hostile_server import answering, hostile_answers, mutated_answers, response, sends

SECONDS = float(os.environ.get("SHOAL_FUZZ_S", "1"))
SEED = int(os.environ.get("SHOAL_FUZZ_SEED", "1"))
LIMITS: dict[str, Any] = {"timeout_s": 1.0, "total_timeout_s": 2.0, "max_attempts": 2}
DEADLINE_S = 60.0
"""The limits above, on a machine with much else to do."""
MAX_BYTES = 48 << 20
LEAKS = re.compile(r'Traceback \(most|File "|site-packages|\.py\b|\braised\b')
MESSAGES = (ChatMessage("user", "Why?"),)
ANSWERS = hostile_answers()
TEMPLATES = {
    "judge": {
        "choices": [{"message": {"role": "assistant", "content": '{"SCORE": 7}'}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    },
    "model": {"data": [{"index": 0, "probs": [1.5, -2, 3], "num_classes": 3}], "usage": {"prompt_tokens": 9}},
}
Ask = Callable[[], Awaitable[VerifierScore]]


@asynccontextmanager
async def asking(kind: str, url: str) -> AsyncIterator[Ask]:
    if kind == "judge":
        judge = Judge(JudgeConfig(base_url=f"{url}/v1", model="judge", **LIMITS))
        yield lambda: judge.judge("general-quality", "Why?", "Because.", "")
        await judge.close()
        return
    config = RewardModelConfig(base_url=url, **LIMITS)
    model = ModelScorer(config)
    model._model, model._label = ModelEndpoint(config), 0  # The state after a start.
    yield lambda: model.judge("reward_model", MESSAGES, "Why?", "Because.")
    await model.close()


def check(score: VerifierScore) -> None:
    assert not LEAKS.search(score.detail), f"the reason shows code: {score.detail}"
    assert math.isfinite(score.value), score
    assert score.outcome is ScoreOutcome.SCORED or score.detail, score
    score_to_wire(Score(0, score.outcome, score.value, (score,))).SerializeToString()


async def outcome(kind: str, name: str) -> str:
    """Returns what is wrong with the outcome of an answer; empty if nothing is."""
    async with answering(ANSWERS[name]) as url, asking(kind, url) as ask:
        try:
            async with asyncio.timeout(DEADLINE_S):
                score = await ask()
            check(score)
            assert score.outcome is not ScoreOutcome.SCORED, score
        except Exception as error:
            return f"{kind}: a server that {name}: {error!r}"
    return ""


@pytest.mark.parametrize("kind", list(TEMPLATES))
async def test_an_answer_that_is_none_is_a_failure_in_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "_FIRST_PAUSE_S", 0.001)
    wrong = await asyncio.gather(*(outcome(kind, name) for name in ANSWERS))
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("name", ["is a gzip bomb", "is a deflate bomb", "has an endless body", "has endless chunks"])
async def test_an_answer_without_end_takes_little_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "_FIRST_PAUSE_S", 0.001)
    async with answering(ANSWERS[name]) as url, asking("judge", url) as ask:
        tracemalloc.start()
        try:
            await ask()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < MAX_BYTES, f"{name}: {most >> 20} MiB"


@pytest.mark.parametrize("kind", list(TEMPLATES))
async def test_arbitrary_values_in_an_answer_are_scored_or_a_failure(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "_FIRST_PAUSE_S", 0.0001)
    answers = mutated_answers(TEMPLATES[kind], SEED)
    num_asked, end = 0, time.monotonic() + SECONDS
    sent: list[bytes] = []

    async def answer() -> AsyncIterator[bytes]:
        sent[:] = [next(answers)]
        async for part in sends(response(sent[0], "Connection: close"))():
            yield part

    async with answering(answer) as url, asking(kind, url) as ask:
        while time.monotonic() < end or not num_asked:
            async with asyncio.timeout(DEADLINE_S):
                score = await ask()
            num_asked += 1
            try:
                check(score)
            except Exception as error:
                pytest.fail(f"seed {SEED}, answer {num_asked}, {sent[0]!r:.300}: {error!r}")
    print(f"\n{kind}: {num_asked} questions from seed {SEED}")
