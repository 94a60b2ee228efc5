"""A bit that flips on its way from the learner to a generator is found by the coordinator.

A real group hands over what has arrived: see test_transfer.py, and tests/integration/test_publish_faults.py for a flip.
"""

import random

import pytest

from services.coordinator.workers.weights.weight_broadcast import differing_tensors
from shoal.weights.manifest import TensorHash, TensorSpec, hashes_to_wire
from shoal.weights.transfer import hash_tensor

torch = pytest.importorskip("torch")

SPECS = (
    TensorSpec("embed", "float32", (300, 101)),
    TensorSpec("norm", "bfloat16", (7, 3)),
    TensorSpec("scalar", "float16", ()),
    TensorSpec("head", "bfloat16", (2_200_000,)),
    TensorSpec("bias", "float16", (515,)),
)
SEED = 20_261_123
NUM_FLIPS = 50


def flips() -> list[tuple[str, int, int]]:
    """First and last byte of each tensor, the rest at random."""
    chosen = random.Random(SEED)
    found = [(spec.name, byte, chosen.randrange(8)) for spec in SPECS for byte in (0, spec.num_bytes - 1)]
    while len(found) < NUM_FLIPS:
        spec = chosen.choice(SPECS)
        found.append((spec.name, chosen.randrange(spec.num_bytes), chosen.randrange(8)))
    return found


def test_each_of_fifty_flipped_bits_is_found_in_its_tensor() -> None:
    generator = torch.Generator().manual_seed(SEED)
    weights = {spec.name: torch.randn(spec.shape, generator=generator).to(getattr(torch, spec.dtype)) for spec in SPECS}
    sent = {name: TensorHash(name, hash_tensor(tensor)) for name, tensor in weights.items()}

    def found(name: str, byte: int, bit: int) -> list[str]:
        """Returns the tensors that differ where one of them has arrived with a flipped bit."""
        flipped = weights[name].clone().reshape(-1)
        flipped.view(torch.uint8)[byte] ^= 1 << bit
        received = sent | {name: TensorHash(name, hash_tensor(flipped))}
        return differing_tensors(hashes_to_wire(sent.values()), hashes_to_wire(received.values()))

    missed = [flip for flip in flips() if found(*flip) != [flip[0]]]
    assert not missed, missed
