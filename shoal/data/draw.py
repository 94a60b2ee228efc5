"""Random draws that stay the same across releases of numpy and Python.

numpy guarantees stability only for the raw output of its bit generators, not for the methods of `Generator`.
"""

import hashlib

import numpy as np
import numpy.typing as npt


def _bits(seed: str) -> np.random.PCG64:
    return np.random.PCG64(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "little"))


def permutation(seed: str, length: int) -> npt.NDArray[np.intp]:
    """Returns the numbers 0 to length - 1 in an order drawn from `seed`, [length]."""
    return np.argsort(_bits(seed).random_raw(length), kind="stable")


def draw_distinct(seed: str, limit: int, count: int) -> list[int]:
    """Returns `count` different numbers from 0 to limit - 1, drawn from `seed`, in the order drawn."""
    assert count <= limit
    if limit <= 4 * count:
        return [int(number) for number in permutation(seed, limit)[:count]]
    bits = _bits(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[int(bits.random_raw()) % limit] = None
    return list(drawn)
