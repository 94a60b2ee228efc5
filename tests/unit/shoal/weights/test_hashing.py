"""A bit that flips on its way from the learner to a generator: over a real gloo group, found by the coordinator."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from services.coordinator.workers.weights.weight_broadcast import differing_tensors
from shoal.v1 import weights_pb2
from shoal.weights.board import open_store, serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec, hashes_to_wire
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import receive_weights, send_weights

torch = pytest.importorskip("torch")

SPECS = (
    TensorSpec("embed", "float32", (300, 101)),
    TensorSpec("norm", "bfloat16", (7, 3)),
    TensorSpec("scalar", "float16", ()),
    TensorSpec("head", "bfloat16", (2_200_000,)),
    TensorSpec("bias", "float16", (515,)),
)
MANIFEST = Manifest(SPECS)
SEED = 20_261_123
NUM_FLIPS = 50


class FlippingGroup(BroadcastGroup):
    """Receives one bit of one tensor as the network has flipped it."""

    flip: tuple[str, int, int]
    """Name, byte and bit."""

    def start(self, tensor: Any) -> Any:
        self._buffers.append(tensor)
        return super().start(tensor)

    def receive(self) -> tuple[TensorHash, ...]:
        self._buffers: list[Any] = []
        self._buckets = iter(MANIFEST.buckets())
        return tuple(found for _, _, found in receive_weights(self, MANIFEST))

    def wait(self, work: Any, deadline: float | None = None) -> None:
        super().wait(work, deadline)
        bucket, buffer = next(self._buckets), self._buffers.pop(0)
        for spec, offset in zip(bucket.tensors, bucket.offsets, strict=True):
            if spec.name == self.flip[0]:
                buffer[offset + self.flip[1]] ^= 1 << self.flip[2]


@pytest.fixture
def groups() -> Iterator[tuple[BroadcastGroup, FlippingGroup]]:
    store = serve_store("127.0.0.1", 0, timeout_s=60)
    rendezvous = Rendezvous("run", 1, "127.0.0.1", store.port, world_size=2, backend="gloo", timeout_s=60)
    client = open_store("127.0.0.1", store.port, timeout_s=60)
    sender, receiver = BroadcastGroup(rendezvous, rank=0, store=store), FlippingGroup(rendezvous, rank=1, store=client)
    with closing(sender), closing(receiver), ThreadPoolExecutor(2) as pool:
        for connecting in [pool.submit(group.connect) for group in (sender, receiver)]:
            connecting.result()
        yield sender, receiver


def flips() -> list[tuple[str, int, int]]:
    """First and last byte of each tensor, the rest at random."""
    chosen = random.Random(SEED)
    found = [(spec.name, byte, chosen.randrange(8)) for spec in SPECS for byte in (0, spec.num_bytes - 1)]
    while len(found) < NUM_FLIPS:
        spec = chosen.choice(SPECS)
        found.append((spec.name, chosen.randrange(spec.num_bytes), chosen.randrange(8)))
    return found


def test_each_of_fifty_flipped_bits_is_found_in_its_tensor(groups: tuple[BroadcastGroup, FlippingGroup]) -> None:
    sender, receiver = groups
    generator = torch.Generator().manual_seed(SEED)
    weights = {spec.name: torch.randn(spec.shape, generator=generator) for spec in SPECS}

    def hashes_of(flip: tuple[str, int, int]) -> tuple[list[weights_pb2.TensorHash], list[weights_pb2.TensorHash]]:
        receiver.flip = flip
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(send_weights, sender, MANIFEST, weights.items())
            receiving = pool.submit(receiver.receive)
            return hashes_to_wire(sending.result()), hashes_to_wire(receiving.result())

    assert differing_tensors(*hashes_of(("none", 0, 0))) == [], "without a flip nothing differs"
    found = {flip: differing_tensors(*hashes_of(flip)) for flip in flips()}
    missed = {flip: names for flip, names in found.items() if names != [flip[0]]}
    assert not missed, f"{len(found) - len(missed)} of {len(found)} found; others: {missed}"
