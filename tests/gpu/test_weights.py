"""Broadcast groups with tensors on GPUs."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch

from shoal.weights.board import open_store, serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import receive_weights, send_weights

HOST = "127.0.0.1"
MANIFEST = Manifest(
    (
        TensorSpec("embed", "bfloat16", (1500, 1024)),
        TensorSpec("norm", "bfloat16", (5,)),
        TensorSpec("head", "bfloat16", (1023, 4099)),
    )
)


def tensors() -> list[tuple[str, torch.Tensor]]:
    """Tensors like those of a learner on a GPU: float32, one of them not contiguous."""
    made = [(spec.name, torch.randn(spec.shape, device="cuda:0")) for spec in MANIFEST.tensors]
    return [*made[:2], (made[2][0], torch.randn(4099, 1023, device="cuda:0").T)]


def receive(rendezvous: Rendezvous, device: str) -> list[TensorHash]:
    torch.cuda.set_device(device if device != "cpu" else 0)
    store = open_store(HOST, rendezvous.store_port, timeout_s=60)
    with closing(BroadcastGroup(rendezvous, rank=1, store=store, device=device)) as group:
        group.connect()
        received = list(receive_weights(group, MANIFEST))
        assert {tensor.device.type for _, tensor, _ in received} == {torch.device(device).type}
        return [found for _, _, found in received]


def _receive_into(queue: Any, rendezvous: Rendezvous) -> None:
    queue.put([(found.name, found.xxh3) for found in receive(rendezvous, "cuda:1")])


def sent(rendezvous: Rendezvous, store: Any) -> tuple[TensorHash, ...]:
    group = BroadcastGroup(rendezvous, rank=0, store=store, device="cuda:0")
    group.connect()
    try:
        return send_weights(group, MANIFEST, tensors())
    finally:
        group.close()


def test_gloo_carries_tensors_of_a_gpu_to_the_memory_of_a_host() -> None:
    store = serve_store(HOST, 0, timeout_s=60)
    rendezvous = Rendezvous("run", 1, HOST, store.port, world_size=2, backend="gloo", timeout_s=60)
    with ThreadPoolExecutor(2) as pool:
        sending, receiving = pool.submit(sent, rendezvous, store), pool.submit(receive, rendezvous, "cpu")
        assert list(sending.result()) == receiving.result()


def test_nccl_connects_broadcasts_and_ends_alone_on_one_gpu() -> None:
    torch.cuda.set_device(0)
    store = serve_store(HOST, 0, timeout_s=60)
    rendezvous = Rendezvous("run", 1, HOST, store.port, world_size=1, backend="nccl", timeout_s=60)
    with closing(BroadcastGroup(rendezvous, rank=0, store=store, device="cuda:0")) as group:
        group.connect()
        tensor = torch.arange(1000, dtype=torch.uint8, device="cuda:0")
        group.wait(group.start(tensor))
        assert torch.equal(tensor.cpu(), torch.arange(1000, dtype=torch.uint8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL refuses two members on one")
def test_nccl_carries_tensors_from_one_gpu_to_another_in_every_epoch() -> None:
    torch.cuda.set_device(0)
    store = serve_store(HOST, 0, timeout_s=60)
    context = multiprocessing.get_context("spawn")
    for epoch in (1, 2):
        rendezvous = Rendezvous("run", epoch, HOST, store.port, world_size=2, backend="nccl", timeout_s=60)
        queue = context.Queue()
        peer = context.Process(target=_receive_into, args=(queue, rendezvous))
        peer.start()
        try:
            hashes = [(found.name, found.xxh3) for found in sent(rendezvous, store)]
            assert queue.get(timeout=60) == hashes
        finally:
            peer.join(60)
            peer.kill()
