"""Supports: the tokens that each token of a completion was drawn from, as bytes in messages."""

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.arrays import Int32Array
from shoal.rollout import Support
from shoal.v1 import learner_pb2, rollout_pb2
from shoal.wire.arrays import int32_from_wire
from shoal.wire.fields import invalid

_PART_BYTES = 1 << 20
"""The largest part of a support in one message, in bytes: a quarter of the largest message."""


def support_from_wire(ids: bytes, counts: bytes, token_ids: Int32Array, field: str) -> Support:
    """Reads the supports of `token_ids`. `field` is the common beginning of the names of the two fields."""
    support = Support(int32_from_wire(ids, f"{field}_token_ids"), int32_from_wire(counts, f"{field}_counts"))
    if len(support.counts) != len(token_ids):
        raise invalid(f"{field}_counts", f"has {len(support.counts)} values for {len(token_ids)} tokens")
    if (support.counts < 1).any():
        raise invalid(f"{field}_counts", f"must be at least 1, for the token itself (given: {support.counts.min()})")
    ends = np.cumsum(support.counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total != len(support.token_ids):
        raise invalid(f"{field}_token_ids", f"has {len(support.token_ids)} values, but the counts add up to {total}")
    strange = np.flatnonzero(support.token_ids[ends - support.counts] != token_ids)
    if len(strange):
        raise invalid(f"{field}_token_ids", f"the support of token {strange[0]} must begin with the token itself")
    return support


def supports_from_wire(
    request: learner_pb2.ComputeLogprobsRequest, sequences: Sequence[Int32Array]
) -> tuple[Support, ...]:
    """Reads the supports of the last tokens of some sequences; () if the request has none."""
    ids, counts = request.support_token_ids, request.support_counts
    if not ids and not counts:
        return ()
    if not len(ids) == len(counts) == len(sequences):
        given = f"{len(ids)} and {len(counts)} for {len(sequences)} sequences"
        raise invalid("support_token_ids", f"needs one entry per sequence, as does support_counts (given: {given})")
    supports = []
    for index, sequence in enumerate(sequences):
        num_tokens = len(counts[index]) // 4
        if num_tokens >= len(sequence):
            raise invalid(
                "support_counts",
                f"must have at most {len(sequence) - 1} values, for all tokens but the first (given: {num_tokens})",
            )
        last = sequence[len(sequence) - num_tokens :]
        supports.append(support_from_wire(ids[index], counts[index], last, "support"))
    return tuple(supports)


def detach_support(message: rollout_pb2.Completion) -> Iterator[bytes]:
    """Removes from a completion the part of its support that exceeds one message.

    Yields the removed support in parts. The messages before the completion must carry these parts, in this order.
    """
    ids = message.support_token_ids
    num_detached = max(0, (len(ids) - 1) // _PART_BYTES * _PART_BYTES)
    message.support_token_ids = ids[num_detached:]
    for start in range(0, num_detached, _PART_BYTES):
        yield ids[start : start + _PART_BYTES]
