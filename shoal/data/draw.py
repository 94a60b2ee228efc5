"""Random draws that stay the same over releases of numpy and Python.

numpy promises that for the raw output of its bit generators only, not for what `Generator` makes of it.
"""

import hashlib

import numpy as np
import numpy.typing as npt


def _bits(seed: str) -> np.random.PCG64:
    return np.random.PCG64(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "little"))


def permutation(seed: str, length: int) -> npt.NDArray[np.intp]:
    """[length] the numbers 0 to length - 1 in an order drawn from `seed`."""
    return np.argsort(_bits(seed).random_raw(length), kind="stable")


def draw_distinct(seed: str, limit: int, count: int) -> list[int]:
    """`count` different numbers from 0 to limit - 1, in the order drawn from `seed`."""
    assert count <= limit
    if limit <= 4 * count:
        return [int(number) for number in permutation(seed, limit)[:count]]
    bits = _bits(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[int(bits.random_raw()) % limit] = None
    return list(drawn)
