"""What each rank gets of a train step: the tokens of its rows, and the lengths of all other completions.

Every rank plans the rows of all ranks, which takes lengths alone. A completion with a loss mask, or of an episode, is
whole on every rank, since its mask and its segments are lengths too.
"""

import struct
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby

import numpy as np

from services.learner.ranks.process_group import ProcessGroup, join_messages, split_messages
from shoal.rollout import Completion, Rollout, TrainBatch
from shoal.v1 import learner_pb2
from shoal.wire import batch_from_wire, group_to_wire, header_to_wire, rollout_to_wire

_COUNT = struct.Struct("<q")
_NO_TOKENS = np.zeros(0, np.int32)
_NO_LOGPROBS = np.zeros(0, np.float32)


def send_shares(process_group: ProcessGroup, batch: TrainBatch, owned: Sequence[Set[int]]) -> None:
    """Sends each follower its share. Rank 0 only.

    `owned` has, for each part of the data, the indices of the rollouts whose tokens the part needs.
    """
    num_tokens = np.array([r.completion.num_tokens for group in batch.groups for r in group.rollouts], dtype="<i8")
    beginning = _COUNT.pack(len(num_tokens)) + num_tokens.tobytes()
    bare = [join_messages(rollout_to_wire(_bare(r))) for group in batch.groups for r in group.rollouts]
    for part, ranks in groupby(range(process_group.size), process_group.data_rank_of):
        if followers := [rank for rank in ranks if rank]:
            share = bytearray().join([beginning, *_messages(batch, bare, owned[part])])
            for rank in followers:
                process_group.send_bytes(share, rank)


def receive_share(process_group: ProcessGroup) -> TrainBatch:
    """Receives the share of this rank. The tokens of other ranks' completions are -1, and take no memory."""
    share = process_group.receive_bytes()
    (num_rollouts,) = _COUNT.unpack_from(share)
    start = _COUNT.size + 8 * num_rollouts
    lengths = iter(np.frombuffer(share[_COUNT.size : start], dtype="<i8").tolist())
    batch = batch_from_wire(split_messages(share[start:], learner_pb2.TrainStepRequest))
    groups = [
        replace(group, rollouts=tuple(_lengthened(rollout, next(lengths)) for rollout in group.rollouts))
        for group in batch.groups
    ]
    return replace(batch, groups=tuple(groups))


def _messages(batch: TrainBatch, bare: list[bytes], owned: Set[int]) -> Iterator[bytes]:
    yield join_messages([header_to_wire(batch)])
    index = 0
    for group in batch.groups:
        yield join_messages([group_to_wire(group)])
        for rollout in group.rollouts:
            yield join_messages(rollout_to_wire(rollout)) if index in owned else bare[index]
            index += 1


def _bare(rollout: Rollout) -> Rollout:
    """Returns the rollout without tokens, unless the plan needs more of it than their number."""
    completion = rollout.completion
    if completion.loss_mask is not None or completion.episode is not None:
        return rollout
    bare = Completion(
        sample_index=completion.sample_index,
        token_ids=_NO_TOKENS,
        behavior_logprobs=_NO_LOGPROBS,
        finish_reason=completion.finish_reason,
        version_spans=(),
        seed=completion.seed,
    )
    return Rollout(bare, rollout.advantage, weight=rollout.weight, reward=rollout.reward)


def _lengthened(rollout: Rollout, num_tokens: int) -> Rollout:
    if rollout.completion.num_tokens == num_tokens:
        return rollout
    completion = replace(
        rollout.completion,
        token_ids=np.broadcast_to(np.int32(-1), num_tokens),
        behavior_logprobs=np.broadcast_to(np.float32(np.nan), num_tokens),
    )
    return replace(rollout, completion=completion)
