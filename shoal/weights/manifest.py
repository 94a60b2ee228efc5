"""The tensors to broadcast: names, types, shapes, their order, and their division into broadcasts."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from shoal.v1 import weights_pb2
from shoal.wire import invalid

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Element types of broadcasts, and their sizes in bytes."""

BUCKET_BYTES = 4 << 20
"""The largest size of a broadcast that neighbors in the manifest share. A larger tensor has its own broadcast.

Each small broadcast costs a round trip, but copying a large tensor into a bucket costs more than the copy saves.
"""

_ALIGNMENT = 16
"""Tensors of a bucket begin at multiples of this many bytes, so that each tensor can be viewed in its type."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the manifest."""

    name: str
    """Name in Hugging Face transformers."""
    dtype: str
    """"float32", "bfloat16" or "float16"."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Bucket:
    """Tensors that share one broadcast."""

    tensors: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    """The first byte of each tensor in the broadcast."""
    num_bytes: int
    """The size of the broadcast in bytes, with alignment."""


@dataclass(frozen=True)
class Manifest:
    """The tensors of one model, in the order in which they are broadcast. Tied tensors appear once."""

    tensors: tuple[TensorSpec, ...]

    @property
    def num_bytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(spec.num_bytes for spec in self.tensors)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 over names, types and shapes, in hex. Equal digests mean equal manifests."""
        lines = (f"{spec.name} {spec.dtype} {','.join(map(str, spec.shape))}\n" for spec in self.tensors)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def buckets(self) -> Iterator[Bucket]:
        """Divides the manifest into broadcasts. The result depends only on the manifest, so both ends agree."""
        gathered: list[TensorSpec] = []
        offsets: list[int] = []
        size = 0
        for spec in self.tensors:
            if gathered and size + spec.num_bytes > BUCKET_BYTES:
                yield Bucket(tuple(gathered), tuple(offsets), size)
                gathered, offsets, size = [], [], 0
            gathered.append(spec)
            offsets.append(size)
            size += -(-spec.num_bytes // _ALIGNMENT) * _ALIGNMENT
        if gathered:
            yield Bucket(tuple(gathered), tuple(offsets), size)

    def to_wire(self) -> weights_pb2.Manifest:
        return weights_pb2.Manifest(
            tensors=[
                weights_pb2.TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in self.tensors
            ],
            digest=self.digest,
        )

    @classmethod
    def from_wire(cls, message: weights_pb2.Manifest) -> "Manifest":
        """Reads and checks a manifest. Raises `InvalidArgument` with the name of the wrong tensor."""
        if not message.tensors:
            raise invalid("manifest.tensors", "is empty; there is nothing to broadcast")
        seen: set[str] = set()
        for index, tensor in enumerate(message.tensors):
            field = f"manifest.tensors[{index}]"
            if not tensor.name or tensor.name in seen:
                raise invalid(f"{field}.name", f"must be set and unique (given: {tensor.name!r})")
            if tensor.dtype not in ELEMENT_BYTES:
                raise invalid(f"{field}.dtype", f"must be one of {', '.join(ELEMENT_BYTES)} (given: {tensor.dtype!r})")
            if any(size < 1 for size in tensor.shape):
                raise invalid(f"{field}.shape", f"sizes must be at least 1 (given: {list(tensor.shape)})")
            seen.add(tensor.name)
        manifest = cls(tuple(TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in message.tensors))
        if message.digest != manifest.digest:
            raise invalid("manifest.digest", f"is {message.digest!r}, but the tensors hash to {manifest.digest!r}")
        return manifest


def num_bytes_of(message: weights_pb2.Manifest) -> int:
    """Returns the size in bytes of the tensors with known types. Does not check the manifest."""
    return sum(math.prod(tensor.shape) * ELEMENT_BYTES.get(tensor.dtype, 0) for tensor in message.tensors)


@dataclass(frozen=True)
class TensorHash:
    """The hash of one tensor, taken over the bytes that were sent or received."""

    name: str
    xxh3: str
    """XXH3-128 over the little-endian bytes, in hex."""


def hashes_to_wire(hashes: Iterable[TensorHash]) -> list[weights_pb2.TensorHash]:
    return [weights_pb2.TensorHash(name=item.name, xxh3=item.xxh3) for item in hashes]
