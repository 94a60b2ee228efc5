import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from services.coordinator.training.reward_kl import RewardKlController
from services.coordinator.workers.learner_client import LearnerClient
from shoal.rollout import Support
from tests.support.groups import group_config, judged, settled_group


class ConstantReference:
    """A learner whose reference gives every token the same log-probability."""

    async def reference_logprobs(self, sequences: list[Any], temperature: float, supports: list[Any]) -> list[Any]:
        return [np.full(len(sequence) - 1, -1.5, np.float32) for sequence in sequences]


def test_masked_tokens_add_nothing_to_the_kl() -> None:
    config = group_config(kl={"coef": 0.5, "place": "reward", "estimator": "k1", "target": 0.5, "horizon": 10})
    plain = settled_group(0, [1.0, 0.0])
    # The second is the environment's: nobody knows its log-probability.
    masked = tuple(
        replace(own, loss_mask=np.array([True, False]), behavior_logprobs=np.array([-1, np.nan], np.float32))
        for own in plain.completions
    )
    controller = RewardKlController(config, cast(LearnerClient, ConstantReference()))
    kl = asyncio.run(controller.measure(judged(config, [replace(plain, completions=masked)])))
    assert [values.tolist() for values in kl.kl_T.values()] == [[0.5, 0.0]] * 2
    metrics = controller.adapt(kl)
    assert metrics["objective/kl"] == metrics["objective/reward_kl"] == 0.5
    assert controller.coef == pytest.approx(0.5), f"{kl.mean} for each token that counts is the target"


def test_groups_that_are_dropped_are_not_measured() -> None:
    config = group_config(kl={"coef": 0.5, "place": "reward"})
    controller = RewardKlController(config, cast(LearnerClient, ConstantReference()))
    groups = judged(config, [settled_group(0, [1.0, 1.0]), settled_group(1, [1.0, 0.0])])
    kl = asyncio.run(controller.measure(groups))
    assert set(kl.kl_T) == {(1, 0), (1, 1)}


def test_the_reference_is_asked_for_the_supports_of_the_policy() -> None:
    class RecordingReference(ConstantReference):
        asked: list[Any]

        async def reference_logprobs(self, sequences: list[Any], temperature: float, supports: list[Any]) -> list[Any]:
            self.asked = supports
            return [np.full(len(support.counts), -1.5, np.float32) for support in supports]

    config = group_config(kl={"coef": 0.5, "place": "reward", "estimator": "k1"})
    plain = settled_group(0, [1.0, 0.0])
    supports = [
        Support(np.array([7, 1, 8, 2], np.int32), np.full(2, 2, np.int32)),
        Support(np.array([7, 3, 8], np.int32), np.array([2, 1], np.int32)),
    ]
    own = [
        replace(completion, support=support) for completion, support in zip(plain.completions, supports, strict=True)
    ]
    reference = RecordingReference()
    controller = RewardKlController(config, cast(LearnerClient, reference))
    kl = asyncio.run(controller.measure(judged(config, [replace(plain, completions=tuple(own))])))
    assert reference.asked == supports
    assert [values.tolist() for values in kl.kl_T.values()] == [[0.5, 0.5]] * 2
