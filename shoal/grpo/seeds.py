"""The seed of every completion."""

import hashlib


def completion_seed(run_seed: int, order_number: int, sample_index: int) -> int:
    """A seed in [0, 2^53) from the run's seed, the group's place in the order of issue and the sample's in it.

    The same on every machine and in every process, so a group that is sampled again draws the same numbers.
    53 bits survive a trip through JSON.
    """
    text = f"{run_seed}/{order_number}/{sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 11
