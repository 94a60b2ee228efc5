"""Publishes of a learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from shoal.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Unavailable,
)
from shoal.weights.board import open_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, hashes_to_wire
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import receive_weights
from shoal.wire import float32_from_wire
from tests.support.learner_client import CANARY, Client
from tests.support.real_generator import logprobs_of
from tests.support.served_learner import client as client

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_epoch_must_be_newer_and_the_same_one_again_changes_nothing(client: Client) -> None:
    first = await client.create_group(10, 1)
    assert await client.create_group(10, 1) == first
    assert first.rendezvous.store_host == "127.0.0.1"
    assert first.manifest.digest == Manifest.from_wire(first.manifest).digest
    names = [tensor.name for tensor in first.manifest.tensors]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names, "the tied head travels once"
    for epoch, world_size in ((9, 1), (10, 2)):
        with pytest.raises(FailedPrecondition, match="not newer") as caught:
            await client.create_group(epoch, world_size)
        assert caught.value.reason == "EPOCH_NOT_NEWER"
    with pytest.raises(FailedPrecondition, match="epoch 11 ") as caught:
        await client.publish(11)
    assert caught.value.reason == "NOT_CURRENT_EPOCH"


async def test_a_publish_without_generators_hashes_and_scores_the_canary(client: Client) -> None:
    await client.create_group(20, 1)
    first, again = await client.publish(20), await client.publish(20)
    assert first.hashes == again.hashes and len(first.hashes) > 0
    assert first.num_bytes == sum(np.prod(t.shape) * 4 for t in (await client.create_group(20, 1)).manifest.tensors)
    canary = float32_from_wire(first.canary.logprobs, "canary")
    np.testing.assert_allclose(canary, await client.logprobs(CANARY), atol=1e-6)


async def test_a_member_receives_the_weights_that_were_published(client: Client) -> None:
    created = await client.create_group(30, 2)
    rendezvous, manifest = Rendezvous.from_wire(created.rendezvous), Manifest.from_wire(created.manifest)

    def receive() -> list[Any]:
        store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=10)
        group = BroadcastGroup(rendezvous, rank=1, store=store)
        group.connect()
        received = [(digest, tensor.clone()) for _, tensor, digest in receive_weights(group, manifest)]
        group.close()
        return received

    received, sent = await asyncio.gather(asyncio.to_thread(receive), client.publish(30))
    assert hashes_to_wire(digest for digest, _ in received) == list(sent.hashes)
    lm = AutoModelForCausalLM.from_pretrained(client.config["model"]["path"])
    lm.load_state_dict({digest.name: tensor for digest, tensor in received}, strict=False)
    expected = logprobs_of(lm, CANARY)
    np.testing.assert_allclose(float32_from_wire(sent.canary.logprobs, "canary"), expected, atol=1e-5)


async def test_a_publish_ends_in_time_when_a_member_does_not_come_and_when_its_epoch_is_replaced(
    client: Client,
) -> None:
    await client.create_group(40, 2)
    with pytest.raises(DeadlineExceeded):
        await client.publish(40)
    await client.create_group(41, 2)
    waiting = asyncio.ensure_future(client.publish(41))
    await asyncio.sleep(0.2)
    await client.create_group(42, 1)
    with pytest.raises(Unavailable, match="epoch 42 begins"):
        await waiting
    assert (await client.publish(42)).hashes
