"""Train steps of a learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from shoal.config.load import parse_config
from shoal.errors import (
    FailedPrecondition,
    InvalidArgument,
)
from shoal.rollout import HandedGroup
from shoal.telemetry import learner_metric_table
from shoal.telemetry.run_metric_table import DISTANCE, TABLE
from shoal.telemetry.run_metrics import missing, undocumented
from shoal.v1 import learner_pb2
from shoal.wire import batch_to_wire, handed_group_to_wire, version_from_wire
from tests.support.learner_client import CANARY, TIMEOUT_S, Client
from tests.support.served_learner import client as client
from tests.support.train_batches import make_batch, make_groups, with_behavior

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_step_raises_the_version_by_one_however_many_optimizer_steps_it_takes(client: Client) -> None:
    before = await client.status()
    response = await client.train(await client.batch("one"))
    assert response.applied and response.skip_reason == ""
    assert response.version.policy_version == before.version.policy_version + 1
    assert response.num_optimizer_steps == before.num_optimizer_steps + 2
    after = await client.status()
    assert (after.version, after.num_optimizer_steps) == (response.version, response.num_optimizer_steps)
    assert 0 < response.metrics["optim/grad_norm"] < 100
    assert response.metrics["val/num_missing_behavior_logprobs"] == 0
    assert response.metrics["objective/kl3"] >= 0
    assert undocumented(response.metrics, TABLE) == [], "add to shoal/telemetry/learner_metric_table.py"
    of_learner = (*learner_metric_table.LEARNER, DISTANCE)
    assert missing(response.metrics, parse_config(client.config), of_learner) == [], sorted(response.metrics)


async def test_a_repeated_step_returns_its_result_and_is_not_applied_again(client: Client) -> None:
    batch = await client.batch("repeated")
    first, joined = await asyncio.gather(client.train(batch), client.train(batch))
    repeated = await client.train(batch)
    assert first == joined == repeated
    assert await client.version() == version_from_wire(first.version)


async def test_a_batch_for_another_version_is_refused(client: Client) -> None:
    version = await client.version()
    stale = replace(version, policy_version=version.policy_version + 1)
    with pytest.raises(FailedPrecondition, match=f"the learner has version {version}") as caught:
        await client.train(make_batch("early", stale))
    assert caught.value.reason == "VERSION_MISMATCH"
    assert (await client.train(make_batch("early", version))).applied, "a refused step may be sent again"


async def test_a_stream_that_is_not_half_closed_applies_nothing(client: Client) -> None:
    batch = await client.batch("broken-off")
    sent = asyncio.Event()

    async def stream() -> AsyncIterator[learner_pb2.TrainStepRequest]:
        for message in batch_to_wire(batch):
            yield message
        sent.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(client.stub.TrainStep(stream(), timeout=TIMEOUT_S))
    await asyncio.wait_for(sent.wait(), TIMEOUT_S)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert await client.version() == batch.expected_version
    assert (await client.train(batch)).applied


async def test_a_step_runs_to_its_end_when_the_caller_goes_away_and_status_answers_meanwhile(client: Client) -> None:
    batch = await client.batch("abandoned", make_groups(num_groups=32, group_size=16))
    call = asyncio.ensure_future(client.train(batch))
    while (await client.status()).status.load.num_running == 0:
        assert not call.done(), "the step was over before it could be abandoned"
        await asyncio.sleep(0.002)
    call.cancel()
    num_answers = 0
    while await client.version() == batch.expected_version:
        num_answers += 1
        await asyncio.sleep(0.01)
    assert num_answers >= 3, f"GetStatus answered {num_answers} times during the step"
    result = await client.train(batch)
    assert result.version.policy_version == batch.expected_version.policy_version + 1


async def test_messages_out_of_order_and_batches_without_tokens_are_refused(client: Client) -> None:
    header, *rest = list(batch_to_wire(await client.batch("malformed")))
    with pytest.raises(InvalidArgument, match=r"^part: .*header"):
        await client.send(rest)
    with pytest.raises(InvalidArgument, match="announced"):
        await client.send([header])
    with pytest.raises(InvalidArgument, match="no completion token"):
        await client.train(await client.batch("empty", []))


async def test_a_step_that_is_not_finite_is_not_applied_and_leaves_everything_as_it_was(client: Client) -> None:
    version, before = await client.version(), await client.logprobs(CANARY)
    steps = (await client.status()).num_optimizer_steps
    poisoned = [with_behavior(group, -1e30) for group in make_groups()]
    response = await client.train(make_batch("poisoned", version, groups=poisoned))
    assert not response.applied
    assert response.skip_reason.endswith("is not finite")
    assert version_from_wire(response.version) == version
    assert (await client.status()).num_optimizer_steps == steps
    assert np.array_equal(before, await client.logprobs(CANARY))
    # One mini-batch of two is sound: that one is applied, and the version rises.
    half = [with_behavior(group, -1e30) if index < 2 else group for index, group in enumerate(make_groups())]
    response = await client.train(make_batch("half-poisoned", version, groups=half))
    assert response.applied
    assert response.metrics["optim/num_refused"] == 1
    assert response.version.policy_version == version.policy_version + 1
    assert np.isfinite(list(response.metrics.values())).all(), response.metrics


@pytest.mark.parametrize("sequence", [[], [5]])
async def test_a_sequence_of_fewer_than_two_tokens_cannot_be_scored(client: Client, sequence: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=r"^token_ids\[0\]: "):
        await client.logprobs(np.array(sequence, dtype=np.int32))


async def test_a_step_of_groups_that_were_handed_over_is_bit_identical(client: Client) -> None:
    saved = await client.save("before")
    version, groups = version_from_wire(saved.version), make_groups(seed=9)
    first = await client.train(make_batch("whole", version, groups=groups))
    logprobs = await client.logprobs(CANARY)
    restored = await client.load("before", saved.files, version.attempt + 1)
    digests = {}
    for number, group in enumerate(groups):
        completions = tuple(rollout.completion for rollout in group.rollouts)
        handed = HandedGroup(restored.attempt, number, group.group_id, group.prompt_token_ids, completions)
        handed, messages = handed_group_to_wire(handed)
        await client.stub.HandOverGroup(iter(messages), timeout=TIMEOUT_S)
        digests[group.group_id] = handed.digest
    again = await client.send(batch_to_wire(make_batch("named", restored, groups=groups), digests))
    for name in ("objective/loss", "optim/grad_norm", "objective/kl3", "lr"):
        assert first.metrics[name] == again.metrics[name], name
    np.testing.assert_array_equal(await client.logprobs(CANARY), logprobs)
