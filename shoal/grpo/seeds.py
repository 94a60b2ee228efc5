"""The seed of every completion."""

import hashlib


def completion_seed(run_seed: int, order_number: int, sample_index: int) -> int:
    """A seed in [0, 2^53) from the run's seed, the group's place in the order of issue and the sample's in it.

    The same on every machine and in every process, so a group that is sampled again draws the same numbers.
    53 bits survive a trip through JSON.
    """
    return _seed(f"{run_seed}/{order_number}/{sample_index}")


def evaluation_seed(run_seed: int, prompt_id: str, sample_index: int) -> int:
    """A seed in [0, 2^53) for one answer to a held-out question, from a sequence of its own.

    The same in every evaluation of the run: two policies answer with the same numbers drawn, so that what differs
    between their answers is the policies.
    """
    return _seed(f"{run_seed}/evaluation/{prompt_id}/{sample_index}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 11
