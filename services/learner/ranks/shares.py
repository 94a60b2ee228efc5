"""What each rank gets of a train step: the tokens of its rows, and the lengths and weights of all completions.

Every rank plans the rows of all ranks, which takes lengths and weights alone. A completion with a loss mask, or of an
episode, is whole on every rank, since its mask and its segments are lengths too.

A share is, with G groups, S completions, and N tokens of completions that are sent as arrays:

    [2] int64      G and S
    [G] int64      the number of completions of each group
    [S] int64      the number of tokens of each completion
    [S, 3] float64 weight, advantage and reward of each completion; the reward is NaN if there is none
    [S] int32      the form of each completion (`_Form`)
    [N] int32      tokens
    [N] float32    behavior log-probabilities
    messages       the step, whose groups have only the completions of the form MESSAGE
"""

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from enum import IntEnum
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from services.learner.ranks.process_group import ProcessGroup, join_messages, split_messages
from shoal.rollout import Completion, FinishReason, Rollout, TrainBatch
from shoal.v1 import learner_pb2
from shoal.wire import batch_from_wire, batch_to_wire

_NO_TOKEN, _NO_LOGPROB = np.int32(-1), np.float32(np.nan)


class _Form(IntEnum):
    """How a share has the tokens of a completion."""

    LENGTH = 0
    """Not at all."""
    ARRAYS = 1
    """In the arrays of tokens and log-probabilities, which are all that its rows need."""
    MESSAGE = 2
    """In a message, which has its mask, support, advantages of tokens and episode."""


def send_shares(process_group: ProcessGroup, batch: TrainBatch, owned: Sequence[Set[int]]) -> None:
    """Sends each follower its share. Rank 0 only.

    `owned` has, for each part of the data, the indices of the rollouts whose tokens the part needs.
    """
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    sizes = [len(group.rollouts) for group in batch.groups]
    beginning = [
        np.array([len(sizes), len(rollouts), *sizes, *(rollout.completion.num_tokens for rollout in rollouts)], "<i8"),
        np.array([_numbers(rollout) for rollout in rollouts], "<f8"),
    ]
    is_whole_S = np.array([_is_whole(rollout.completion) for rollout in rollouts], bool)
    has_more_S = np.array([_has_more(rollout) for rollout in rollouts], bool)
    messages: dict[bytes, bytes] = {}
    for part, ranks in groupby(range(process_group.size), process_group.data_rank_of):
        if followers := [rank for rank in ranks if rank]:
            is_owned_S = np.zeros(len(rollouts), bool)
            is_owned_S[list(owned[part])] = True
            is_message_S = is_whole_S | (is_owned_S & has_more_S)
            is_array_S = is_owned_S & ~is_message_S
            forms_S = (_Form.ARRAYS * is_array_S + _Form.MESSAGE * is_message_S).astype("<i4")
            arrays = [rollouts[index].completion for index in np.flatnonzero(is_array_S)]
            in_messages = is_message_S.tobytes()
            if in_messages not in messages:
                messages[in_messages] = join_messages(batch_to_wire(_only(batch, in_messages)))
            token_ids = [np.ascontiguousarray(completion.token_ids, "<i4") for completion in arrays]
            logprobs = [np.ascontiguousarray(completion.behavior_logprobs, "<f4") for completion in arrays]
            parts: list[Any] = [*beginning, forms_S, *token_ids, *logprobs, messages[in_messages]]
            share = bytearray().join(parts)
            for rank in followers:
                process_group.send_bytes(share, rank)


def _numbers(rollout: Rollout) -> tuple[float, float, float]:
    return rollout.weight, rollout.advantage, math.nan if rollout.reward is None else rollout.reward


def _is_whole(completion: Completion) -> bool:
    """Returns whether every rank gets the completion, since its mask or its segments are lengths too."""
    return completion.loss_mask is not None or completion.episode is not None


def _has_more(rollout: Rollout) -> bool:
    """Returns whether the completion's rows need more than arrays of tokens and log-probabilities."""
    return rollout.completion.support is not None or rollout.token_advantages is not None


def _only(batch: TrainBatch, is_picked: bytes) -> TrainBatch:
    """Returns the batch with the rollouts whose bytes are not 0."""
    picks = iter(is_picked)
    groups = [replace(group, rollouts=tuple(r for r in group.rollouts if next(picks))) for group in batch.groups]
    return replace(batch, groups=tuple(groups))


def receive_share(process_group: ProcessGroup) -> TrainBatch:
    """Receives the share of this rank. The tokens of other ranks' completions are -1, and take no memory.

    A completion that was not sent as a message has only what a step reads: tokens, log-probabilities, and values.
    """
    share = process_group.receive_bytes()
    start = 0

    def take(count: int, dtype: str) -> npt.NDArray[Any]:
        nonlocal start
        values = np.frombuffer(share, dtype, count, start)
        start += values.nbytes
        return values

    num_groups, num_rollouts = take(2, "<i8").tolist()
    sizes, counts_S = take(num_groups, "<i8").tolist(), take(num_rollouts, "<i8")
    factors, advantages, rewards = take(3 * num_rollouts, "<f8").reshape(-1, 3).T.tolist()
    forms_S = take(num_rollouts, "<i4")
    num_tokens = int(counts_S[forms_S == _Form.ARRAYS].sum())
    token_ids, logprobs = take(num_tokens, "<i4"), take(num_tokens, "<f4")
    batch = batch_from_wire(split_messages(share[start:], learner_pb2.TrainStepRequest))
    in_messages = (rollout for group in batch.groups for rollout in group.rollouts)
    rollouts: list[Rollout] = []
    at = 0
    for index, (form, count) in enumerate(zip(forms_S.tolist(), counts_S.tolist(), strict=True)):
        if form == _Form.MESSAGE:
            rollouts.append(next(in_messages))
            continue
        if form == _Form.ARRAYS:
            arrays = token_ids[at : at + count], logprobs[at : at + count]
            at += count
        else:
            arrays = np.broadcast_to(_NO_TOKEN, count), np.broadcast_to(_NO_LOGPROB, count)
        completion = Completion(0, *arrays, finish_reason=FinishReason.STOP, version_spans=(), seed=0)
        reward = None if math.isnan(rewards[index]) else rewards[index]
        rollouts.append(Rollout(completion, advantages[index], factors[index], reward))
    following = iter(rollouts)
    groups = [
        replace(group, rollouts=tuple(islice(following, size))) for group, size in zip(batch.groups, sizes, strict=True)
    ]
    return replace(batch, groups=tuple(groups))
