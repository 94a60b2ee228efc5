"""Arrays as bytes: little-endian int32 and float32."""

import numpy as np

from shoal.arrays import Float32Array, Int32Array
from shoal.wire.fields import invalid


def int32_to_wire(array: Int32Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<i4").tobytes()


def float32_to_wire(array: Float32Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


def int32_from_wire(data: bytes, field: str) -> Int32Array:
    """Returns a read-only [len / 4] view of the bytes."""
    if len(data) % 4:
        raise invalid(field, f"must have 4 bytes for each int32 (given: {len(data)} bytes)")
    return np.frombuffer(data, dtype="<i4")


def float32_from_wire(data: bytes, field: str) -> Float32Array:
    """Returns a read-only [len / 4] view of the bytes."""
    if len(data) % 4:
        raise invalid(field, f"must have 4 bytes for each float32 (given: {len(data)} bytes)")
    return np.frombuffer(data, dtype="<f4")
