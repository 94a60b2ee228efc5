import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from services.coordinator.training.reward_kl import RewardKlController
from services.coordinator.workers.learner_client import LearnerClient
from shoal.config.live import LiveConfig
from shoal.rollout import Episode, EpisodeSegment, Support
from shoal.scores import ScoreOutcome
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
    controller = RewardKlController(LiveConfig(config), cast(LearnerClient, ConstantReference()))
    kl = asyncio.run(controller.measure(judged(config, [replace(plain, completions=masked)])))
    assert [values.tolist() for values in kl.kl_T.values()] == [[0.5, 0.0]] * 2
    metrics = controller.adapt(kl)
    assert metrics["objective/kl"] == metrics["objective/reward_kl"] == 0.5
    assert controller.coef == pytest.approx(0.5), f"{kl.mean} for each token that counts is the target"


def test_groups_that_are_dropped_are_not_measured() -> None:
    config = group_config(kl={"coef": 0.5, "place": "reward"})
    controller = RewardKlController(LiveConfig(config), cast(LearnerClient, ConstantReference()))
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
    controller = RewardKlController(LiveConfig(config), cast(LearnerClient, reference))
    kl = asyncio.run(controller.measure(judged(config, [replace(plain, completions=tuple(own))])))
    assert reference.asked == supports
    assert [values.tolist() for values in kl.kl_T.values()] == [[0.5, 0.5]] * 2


def test_the_reference_reads_each_segment_behind_its_own_prompt() -> None:
    class CountingReference(ConstantReference):
        asked: list[list[int]]

        async def reference_logprobs(self, sequences: list[Any], temperature: float, supports: list[Any]) -> list[Any]:
            self.asked = [sequence.tolist() for sequence in sequences]
            return [-np.arange(len(sequence) - 1, dtype=np.float32) for sequence in sequences]

    config = group_config(kl={"coef": 0.5, "place": "reward", "estimator": "k1"})
    plain = settled_group(0, [1.0, 0.0])
    first, second = plain.completions
    segments = tuple(
        EpisodeSegment(np.array(prompt, np.int32), start, start + 1) for start, prompt in enumerate([[5, 6, 7], [8]])
    )
    cut = replace(first, episode=Episode((), "done", False, ScoreOutcome.SCORED, segments=segments))
    reference = CountingReference()
    controller = RewardKlController(LiveConfig(config), cast(LearnerClient, reference))
    kl = asyncio.run(controller.measure(judged(config, [replace(plain, completions=(cut, second))])))
    tokens = cut.token_ids.tolist()
    assert reference.asked[:2] == [[5, 6, 7, tokens[0]], [8, tokens[1]]]
    behavior = cut.behavior_logprobs
    assert kl.kl_T[(0, 0)].tolist() == pytest.approx([behavior[0] + 2, behavior[1] + 0]), "the last token of each"
