"""One pass of broadcasts: sends or receives the tensors of a manifest, in order, and hashes their bytes."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Bucket, Manifest, TensorHash, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work

_NUM_IN_FLIGHT = 4
"""The number of concurrent broadcasts, which is enough to keep the link busy while one bucket is hashed and loaded."""

_BYTES_IN_FLIGHT = 256 << 20
"""The bytes above which broadcasts run one at a time. Their buffers must fit beside the model and the caches."""


def send_weights(
    group: BroadcastGroup,
    manifest: Manifest,
    tensors: Iterable[tuple[str, "torch.Tensor"]],
    *,
    within_s: float | None = None,
) -> tuple[TensorHash, ...]:
    """Broadcasts tensors to all members, as rank 0.

    `tensors` yields (name, tensor) in manifest order. Tensors may be on any device and of any floating type, and are
    cast to the manifest's type. Each tensor is read before the next is taken, so `tensors` may gather and free them one
    by one. The pass may take `within_s`, by default the rendezvous' `timeout_s`.

    Returns the hashes in manifest order. Raises the errors of `BroadcastGroup.wait`, and `DataLoss` if name or shape of
    a tensor differs from the manifest.
    """
    deadline = time.monotonic() + (group.rendezvous.timeout_s if within_s is None else within_s)
    source = iter(tensors)
    hashes: list[TensorHash] = []
    in_flight: deque[tuple[torch.Tensor, Work]] = deque()
    for bucket in manifest.buckets():
        while in_flight and not _may_start(bucket, [len(payload) for payload, _ in in_flight]):
            group.wait(in_flight[0][1], deadline)
            in_flight.popleft()
        payload = _fill(bucket, source, group.device)
        in_flight.append((payload, group.start(payload)))
        hashes += [TensorHash(spec.name, hash_tensor(part)) for spec, part in _parts(bucket, payload)]
    while in_flight:
        group.wait(in_flight[0][1], deadline)
        in_flight.popleft()
    return tuple(hashes)


def receive_weights(
    group: BroadcastGroup, manifest: Manifest
) -> Iterator[tuple[TensorSpec, "torch.Tensor", TensorHash]]:
    """Receives the tensors of a manifest in order, each with the hash of its bytes, on every rank except rank 0.

    Call `next` only once the sender may start, since the first item waits for broadcasts. Each tensor is on the group's
    device and belongs to the caller. The pass may take `timeout_s`. Raises the errors of `BroadcastGroup.wait`.
    """
    import torch

    deadline = time.monotonic() + group.rendezvous.timeout_s
    in_flight: deque[tuple[Bucket, torch.Tensor, Work]] = deque()
    upcoming = deque(manifest.buckets())
    while upcoming or in_flight:
        while upcoming and _may_start(upcoming[0], [len(buffer) for _, buffer, _ in in_flight]):
            bucket = upcoming.popleft()
            buffer = torch.empty(bucket.num_bytes, dtype=torch.uint8, device=group.device)
            in_flight.append((bucket, buffer, group.start(buffer)))
        arrived, payload, work = in_flight[0]
        group.wait(work, deadline)
        in_flight.popleft()
        for spec, part in _parts(arrived, payload):
            yield spec, part, TensorHash(spec.name, hash_tensor(part))


def hash_tensor(tensor: "torch.Tensor") -> str:
    """Returns the XXH3-128 over the little-endian bytes of a tensor of any type and device, in hex."""
    import torch
    import xxhash

    flat = tensor.detach().reshape(-1).view(torch.uint8).cpu()
    return str(xxhash.xxh3_128_hexdigest(flat.numpy().data))


def _may_start(bucket: Bucket, in_flight: list[int]) -> bool:
    """Returns whether a broadcast may start. `in_flight` has the sizes in bytes of the current broadcasts."""
    if not in_flight:
        return True
    return len(in_flight) < _NUM_IN_FLIGHT and sum(in_flight) + bucket.num_bytes <= _BYTES_IN_FLIGHT


def _fill(bucket: Bucket, source: Iterator[tuple[str, "torch.Tensor"]], device: str) -> "torch.Tensor":
    """Returns the bytes of a bucket as one uint8 tensor: a view if the bucket has one tensor, otherwise a copy."""
    import torch

    if len(bucket.tensors) == 1:
        only = _next_tensor(source, bucket.tensors[0], device).contiguous().reshape(-1).view(torch.uint8)
        if len(only) == bucket.num_bytes:
            return only
        return torch.nn.functional.pad(only, (0, bucket.num_bytes - len(only)))
    payload = torch.zeros(bucket.num_bytes, dtype=torch.uint8, device=device)
    for spec, part in _parts(bucket, payload):
        part.copy_(_next_tensor(source, spec, device))
    return payload


def _next_tensor(source: Iterator[tuple[str, "torch.Tensor"]], spec: TensorSpec, device: str) -> "torch.Tensor":
    import torch

    name, tensor = next(source, ("nothing more", None))
    if tensor is None or name != spec.name or tuple(tensor.shape) != spec.shape:
        found = name if tensor is None else f"{name} {list(tensor.shape)}"
        raise DataLoss(
            f"the manifest expects the tensor {spec.name} with shape {list(spec.shape)}, but the sender has {found}: "
            "the model changed after the group was created",
            reason=ErrorReason.MANIFEST_MISMATCH,
        )
    return tensor.detach().to(device=device, dtype=getattr(torch, spec.dtype))


def _parts(bucket: Bucket, payload: "torch.Tensor") -> Iterator[tuple[TensorSpec, "torch.Tensor"]]:
    """Yields the tensors of a bucket as views of its bytes, in their types and shapes."""
    import torch

    for spec, offset in zip(bucket.tensors, bucket.offsets, strict=True):
        flat = payload[offset : offset + spec.num_bytes]
        yield spec, flat.view(getattr(torch, spec.dtype)).reshape(spec.shape)
