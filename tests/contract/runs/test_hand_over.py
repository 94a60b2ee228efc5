"""Groups reach the learner before their step: what is left to send with a step, and what happens without it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.learner.held_groups import HeldGroups
from shoal.v1 import generator_pb2
from tests.support.cluster import Cluster
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, ScriptedReward, arithmetic_config
from tests.support.waiting import eventually

NUM_STEPS = 3
LENGTH = 100
"""The tokens of a completion for each of the scripted generator's."""


class LongWinded(ScriptedGenerator):
    """Samples long completions. Group 3 waits for `may_sample`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.plane, holds_from=3)

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        async for response in super().GenerateGroup(request, context):
            if response.HasField("completion"):
                completion = response.completion
                completion.token_ids *= LENGTH
                completion.behavior_logprobs *= LENGTH
                completion.version_spans[0].end *= LENGTH
            yield response


async def train(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    await cluster.run_to_end(arithmetic_config(model, run={"num_steps": NUM_STEPS}))
    await cluster.check_every_group_was_used_once(NUM_STEPS)


def whole_bytes(learner: ScriptedLearner) -> list[int]:
    return [sum(message.ByteSize() for message in batch) for batch in learner.batches]


async def test_after_the_last_completion_of_a_step_only_its_group_is_sent(cluster: Cluster, model: Path) -> None:
    learner, generator = cluster.learner, LongWinded(cluster)
    await cluster.add_all(generator, rewards=(ScriptedReward(constant=1.0),))
    sections: dict[str, Any] = {
        "run": {"num_steps": 1},
        "grpo": {"max_staleness": 0},
        "advantage": {"baseline": "none", "scale": "none"},
        "sampling": {"max_completion_tokens": 6 * LENGTH},
    }
    await cluster.start(arithmetic_config(model, **sections))
    await eventually(lambda: len(learner.held_groups) == 3, "a learner that holds three of four groups")
    assert not learner.step_bytes
    generator.may_sample.set()
    await cluster.finish(1)
    await cluster.check_every_group_was_used_once(1)
    [step], [whole] = learner.step_bytes, whole_bytes(learner)
    last = sum(message.ByteSize() for message in learner.batches[0][-5:])
    assert whole > 4 * 4 * LENGTH * 8 and step < last + 1000, (step, last, whole)
    assert not learner.held_groups


async def test_a_learner_that_holds_no_more_gets_the_groups_with_their_step(cluster: Cluster, model: Path) -> None:
    cluster.learner.max_held_bytes = 0
    await train(cluster, model)
    assert cluster.learner.step_bytes == whole_bytes(cluster.learner)


async def test_a_learner_that_has_lost_its_groups_gets_them_with_their_step(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = cluster.learner
    num_named = 0
    named_in = HeldGroups.named_in

    def forgetting(held: HeldGroups, messages: Any) -> Any:
        nonlocal num_named
        num_named += sum(message.HasField("held_group") for message in messages)
        return named_in(HeldGroups(), messages)

    monkeypatch.setattr(HeldGroups, "named_in", forgetting)
    await train(cluster, model)
    assert num_named and learner.step_bytes == whole_bytes(learner)


async def test_a_learner_of_an_earlier_version_gets_whole_steps(cluster: Cluster, model: Path) -> None:
    class Earlier(ScriptedLearner):
        async def HandOverGroup(self, request_iterator: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    cluster.learner = Earlier(cluster.plane)
    await train(cluster, model)
    assert cluster.learner.step_bytes == whole_bytes(cluster.learner)
