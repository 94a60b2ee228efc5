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
        raise invalid(field, f"{len(data)} bytes are not a whole number of int32")
    return np.frombuffer(data, dtype="<i4")


def float32_from_wire(data: bytes, field: str) -> Float32Array:
    """Returns a read-only [len / 4] view of the bytes."""
    if len(data) % 4:
        raise invalid(field, f"{len(data)} bytes are not a whole number of float32")
    return np.frombuffer(data, dtype="<f4")
