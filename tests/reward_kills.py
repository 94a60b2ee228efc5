"""Completions scored while the processes that score them are killed."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

from shoal.rollout import GroundTruth, Score, ScoreOutcome
from tests.reward_client import RewardProcess

GROUP_SIZE = 20
NUM_STREAMS = 16
_SCHEMA = {"type": "object", "required": ["answer"]}


@dataclass(frozen=True)
class Volley:
    """What came of it."""

    scores: dict[str, list[Score]]
    """By group, in the order in which they came."""
    num_kills: int


async def volley(reward: RewardProcess, *, num_groups: int, seed: int | None = None, gap: float = 100.0) -> Volley:
    """Scores groups, several at once; with a `seed` a process of the pool is killed every `gap` completions, in the
    mean: by time, a busy machine would start none before it is killed."""
    waiting = [(f"group-{number}", *_group(number)) for number in reversed(range(num_groups))]
    scores: dict[str, list[Score]] = {}
    killed: list[int] = []

    async def stream() -> None:
        while waiting:
            name, truth, texts = waiting.pop()
            scores[name] = await reward.score([truth], texts)

    async def kill() -> None:
        chance = random.Random(seed)
        status = await reward.status()
        while True:
            num_wanted = sum(status.num_scored.values()) + chance.expovariate(1 / gap)
            while sum(status.num_scored.values()) < num_wanted:
                await asyncio.sleep(chance.uniform(0.0, 0.02))
                status = await reward.status()
            if victims := [pid for pid in status.pool_pids if pid and pid not in killed]:
                killed.append(chance.choice(victims))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killing = asyncio.create_task(asyncio.sleep(0) if seed is None else kill())
    await asyncio.gather(*(stream() for _ in range(NUM_STREAMS)))
    killing.cancel()
    await asyncio.wait([killing])
    return Volley(scores, len(killed))


def check(undisturbed: Volley, disturbed: Volley) -> str:
    """Asserts that kills changed no score; says how many completions the pool gave up."""
    assert disturbed.scores.keys() == undisturbed.scores.keys()
    num_failed = 0
    for name, expected in undisturbed.scores.items():
        counts = Counter(score.sample_index for score in disturbed.scores[name])
        assert counts == Counter(range(GROUP_SIZE)), f"{name}: answered {counts}"
        by_index = {score.sample_index: score for score in expected}
        for score in disturbed.scores[name]:
            if score.outcome is ScoreOutcome.FAILED:
                num_failed += 1
                detail = score.verifier_scores[0].detail
                assert "process died (signal 9)" in detail and not score.reward, f"{name}: {score}"
                continue
            wanted = by_index[score.sample_index]
            got = (score.outcome, score.reward)
            assert got == (wanted.outcome, wanted.reward), f"{name}: {score}, undisturbed {wanted}"
    total = GROUP_SIZE * len(undisturbed.scores)
    assert num_failed <= total / 100, f"{num_failed} of {total} were given up"
    return f"{total} completions, {disturbed.num_kills} kills: {num_failed} failed, by name; all others as without"


def _group(number: int) -> tuple[GroundTruth, list[str]]:
    """A verifier's completions, right and wrong ones, and some that no verifier can judge."""
    cases: list[tuple[str, Any, str, str]] = [
        ("gsm8k", str(number), f"It is {number}.", f"It is {number + 1}."),
        ("math", f"\\frac{{{number}}}{{7}}", f"$\\boxed{{{2 * number}/14}}$", f"$\\boxed{{{number}/8}}$"),
        ("string_f1", "the red house", "a red house", "blue"),
        ("json_schema", _SCHEMA, '{"answer": 5}', "[5]"),
        ("exact_string", str(number), str(number), "no"),
        ("gsm8k", "many", "It is 5.", "It is 6."),
    ]
    verifier, label, right, wrong = cases[number % len(cases)]
    return GroundTruth(verifier, label), [wrong if index % 3 else right for index in range(GROUP_SIZE)]
