"""How steps that are not applied are counted."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from services.coordinator.run.train_steps import TrainSteps
from shoal.config import parse_config
from shoal.errors import FailedPrecondition
from shoal.rollout import WeightVersion

CONFIG: dict[str, Any] = {"model": {"path": "m"}, "data": {"sources": [{"path": "d.jsonl"}]}}


class StepsWithoutGroups(TrainSteps):
    """Steps whose plans a test writes: "refused" has a group that the learner refuses, "no_signal" has none."""

    outcome: str

    async def _plan(self, groups: Any) -> Any:
        trained = [SimpleNamespace(order_number=0)] if self.outcome == "refused" else []
        batch = SimpleNamespace(groups=trained)
        plan = SimpleNamespace(batch=batch, trained=trained, dropped=[], moments=Mock(), empty_reason="no signal")
        return plan, None


def make_steps(**grpo: Any) -> StepsWithoutGroups:
    refused = SimpleNamespace(version=WeightVersion(0, 0), skip_reason="not finite", metrics={})
    parts: dict[str, Any] = dict.fromkeys(
        ("record", "publisher", "updates", "commands", "boundary", "saving", "metrics", "gate"), Mock()
    )
    return StepsWithoutGroups(
        **parts,
        config=parse_config(CONFIG | {"grpo": grpo}),
        version=Mock(weights=WeightVersion(0, 0), policy_version=0),
        progress=Mock(num_episodes=0),
        buffer=Mock(next_to_take=0, release=AsyncMock()),
        prompt_order=Mock(exclude_learned=Mock(return_value=[])),
        ledger=Mock(step_done=AsyncMock()),
        learner=Mock(train_step=AsyncMock(return_value=refused)),
        reward_kl=Mock(coef=None),
        report=Mock(),
        learner_lock=asyncio.Lock(),
    )


async def take(steps: StepsWithoutGroups, *outcomes: str) -> None:
    for steps.outcome in outcomes:
        assert not await steps.take([], Mock())


async def test_a_step_without_a_signal_ends_a_row_of_refused_steps() -> None:
    steps = make_steps()
    await take(steps, "refused", "refused", *["no_signal"] * 5, "refused", "refused")
    assert (steps.num_skipped, steps.num_refused) == (9, 2)
    with pytest.raises(FailedPrecondition, match="the learner refused 3 steps in a row: not finite"):
        await take(steps, "refused")


async def test_a_given_limit_counts_both_kinds_of_skipped_steps() -> None:
    steps = make_steps(max_skipped_steps=3)
    await take(steps, "refused", "no_signal")
    with pytest.raises(FailedPrecondition, match=r"3 steps in a row were skipped \(grpo\.max_skipped_steps\)"):
        await take(steps, "refused")
