"""Contract test: random kills of pool processes change no score of a real reward service."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.rollout import GroundTruth
from shoal.scores import Score, ScoreOutcome
from tests.support.reward_client import RewardProcess, reward_process

GROUP_SIZE = 20
NUM_GROUPS = 40
NUM_STREAMS = 16
_SCHEMA = {"type": "object", "required": ["answer"]}


Scores = dict[str, list[Score]]
"""By group, in the order of arrival."""


async def score_groups(reward: RewardProcess, *, seed: int | None = None, gap: float = 100.0) -> tuple[Scores, int]:
    """Scores all groups, several at once; with a `seed`, kills a pool process every `gap` completions on average.

    Kills follow completions and not time, because on a busy machine no process would finish its start before a kill.
    Returns the scores and the number of kills.
    """
    waiting = [(f"group-{number}", *_group(number)) for number in reversed(range(NUM_GROUPS))]
    scores: Scores = {}
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
    return scores, len(killed)


def check(undisturbed: Scores, disturbed: Scores) -> int:
    """Asserts that kills changed no score; returns how many completions the pool failed."""
    assert disturbed.keys() == undisturbed.keys()
    num_failed = 0
    for name, expected in undisturbed.items():
        counts = Counter(score.sample_index for score in disturbed[name])
        assert counts == Counter(range(GROUP_SIZE)), f"{name}: answered {counts}"
        by_index = {score.sample_index: (score.outcome, score.reward) for score in expected}
        for score in disturbed[name]:
            if score.outcome is ScoreOutcome.FAILED:
                num_failed += 1
                detail = score.verifier_scores[0].detail
                assert "process died (signal 9)" in detail and not score.reward, f"{name}: {score}"
                continue
            wanted = by_index[score.sample_index]
            assert (score.outcome, score.reward) == wanted, f"{name}: {score}, undisturbed {wanted}"
    return num_failed


def _group(number: int) -> tuple[GroundTruth, list[str]]:
    """Returns a label and its completions, correct and wrong ones; every fifth label is malformed."""
    cases: list[tuple[str, Any, str, str]] = [
        ("gsm8k", str(number), f"It is {number}.", f"It is {number + 1}."),
        ("string_f1", "the red house", "a red house", "blue"),
        ("json_schema", _SCHEMA, '{"answer": 5}', "[5]"),
        ("exact_string", str(number), str(number), "no"),
        ("gsm8k", "many", "It is 5.", "It is 6."),
    ]
    verifier, label, right, wrong = cases[number % len(cases)]
    return GroundTruth(verifier, label), [wrong if index % 3 else right for index in range(GROUP_SIZE)]


async def test_random_kills_change_no_score_and_lose_no_completion(tmp_path: Path) -> None:
    async with reward_process(tmp_path) as reward:
        await reward.configured(num_processes=2)
        undisturbed, _ = await score_groups(reward)
        disturbed, num_kills = await score_groups(reward, seed=1)
        assert num_kills >= 4, f"only {num_kills} kills"
        num_failed = check(undisturbed, disturbed)
        print(f"{NUM_GROUPS * GROUP_SIZE} completions, {num_kills} kills: {num_failed} failed; all others score alike")
        assert num_failed <= NUM_GROUPS * GROUP_SIZE / 100, f"{num_failed} failed"
        restarts = (await reward.status()).num_pool_restarts
        # The pool counts a kill at the very end of the round only when it notices the dead process.
        assert num_kills - 2 <= restarts <= num_kills, f"{restarts} restarts"
