"""What a follower gets of a train step."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from services.learner.learner import Learner
from services.learner.loss.loss_tokens import LossTokens
from services.learner.model.packing import pack_for_rank
from services.learner.ranks.shares import receive_share, send_shares
from shoal.config import RunConfig
from shoal.rollout import TrainBatch, TrainGroup
from tests.support.configs import run_config
from tests.support.loss_variants import varied_groups
from tests.support.train_batches import make_batch, make_groups, with_segments, with_supports

PACK_TOKENS = 60


class Ranks:
    """Rank 0 of some ranks, of which `sharing` share rows. Keeps what is sent."""

    rank = data_rank = 0
    device = torch.device("cpu")

    def __init__(self, size: int, sharing: int = 1) -> None:
        self.size, self.data_size = size, size // sharing
        self.sent: dict[int, bytearray] = {}

    def data_rank_of(self, rank: int) -> int:
        return rank * self.data_size // self.size

    def send_bytes(self, body: bytearray, rank: int) -> None:
        self.sent[rank] = body


def shares(batch: TrainBatch, ranks: Ranks, config: RunConfig) -> dict[int, TrainBatch]:
    """Returns what each follower receives."""
    group: Any = ranks
    nothing: Any = None
    learner = Learner(config, group, nothing, None, lm=None, model=nothing, pack_tokens=PACK_TOKENS)
    send_shares(group, batch, learner.rollouts_of_parts(batch.groups))
    receivers: dict[int, Any] = {
        rank: SimpleNamespace(receive_bytes=lambda body=body: memoryview(body)) for rank, body in ranks.sent.items()
    }
    return {rank: receive_share(receiver) for rank, receiver in receivers.items()}


def config(num_mini_batches: int = 1, **sections: Any) -> RunConfig:
    return run_config(
        grpo={"num_mini_batches": num_mini_batches, "groups_per_step": 8},
        learner={"pack_tokens": PACK_TOKENS},
        **sections,
    )


def mixed_groups() -> list[TrainGroup]:
    """Groups with masks, supports, token advantages and an episode of segments."""
    first, second, *others = varied_groups(num_groups=6)
    cut = with_segments(make_groups(num_groups=1, seed=7)[0], num_prompt_tokens=(5, 9))
    supported = with_supports(make_groups(num_groups=1, seed=8))[0]
    return [first, second, cut, supported, *others]


def row_values(groups: Sequence[TrainGroup], rank: int, num_ranks: int) -> list[list[Any]]:
    """Returns all values of a rank's rows."""
    num_completions = sum(len(group.rollouts) for group in groups)
    values = []
    for row in pack_for_rank(groups, max_tokens=PACK_TOKENS, rank=rank, num_ranks=num_ranks)[0]:
        tokens = LossTokens.of(row.stretches, num_completions)
        tensors = [row.token_ids_R, row.positions_R, row.predicting_C, row.targets_C, row.at_C, row.support_CK]
        tensors += [tokens.behavior_logprobs_N, tokens.advantages_N, tokens.rewards_N, tokens.completions.index_C]
        values.append([None if tensor is None else tensor.numpy().tobytes() for tensor in tensors])
    return values


@pytest.mark.parametrize(("size", "sharing"), [(2, 1), (4, 1), (4, 2)])
def test_the_rows_of_a_share_are_those_of_the_whole_step(size: int, sharing: int) -> None:
    batch, ranks = make_batch(groups=mixed_groups()), Ranks(size, sharing)
    for rank, share in shares(batch, ranks, config()).items():
        part = ranks.data_rank_of(rank)
        expected = row_values(batch.groups, part, ranks.data_size)
        assert row_values(share.groups, part, ranks.data_size) == expected, f"rank {rank}"


def test_a_follower_of_two_ranks_gets_the_tokens_of_its_rows_alone_in_every_mini_batch() -> None:
    batch, ranks = make_batch(groups=make_groups(num_groups=8, group_size=8)), Ranks(2)
    (share,) = shares(batch, ranks, config(num_mini_batches=2)).values()
    kept, num_tokens = 0, 0
    for group, whole in zip(share.groups, batch.groups, strict=True):
        for rollout, original in zip(group.rollouts, whole.rollouts, strict=True):
            completion = rollout.completion
            assert completion.num_tokens == original.completion.num_tokens
            num_tokens += completion.num_tokens
            if completion.token_ids.strides == (0,) and completion.num_tokens:
                assert (completion.token_ids == -1).all() and np.isnan(completion.behavior_logprobs).all()
            else:
                np.testing.assert_array_equal(completion.token_ids, original.completion.token_ids)
                kept += completion.num_tokens
    assert 0.4 < kept / num_tokens < 0.6, f"{kept} of {num_tokens} tokens"


def test_followers_get_each_token_once_all_together() -> None:
    groups = make_groups(num_groups=4, group_size=4)
    long = [
        replace(
            group,
            rollouts=tuple(
                replace(
                    r,
                    completion=replace(
                        r.completion,
                        token_ids=np.resize(r.completion.token_ids, 5000),
                        behavior_logprobs=np.resize(r.completion.behavior_logprobs, 5000),
                        version_spans=(replace(r.completion.version_spans[0], end=5000),),
                    ),
                )
                for r in group.rollouts
            ),
        )
        for group in groups
    ]
    ranks = Ranks(4)
    shares(make_batch(groups=long), ranks, config())
    num_bytes, of_tokens = sum(map(len, ranks.sent.values())), 8 * 5000 * 16
    assert num_bytes < 0.76 * of_tokens, f"three of four ranks get {num_bytes} bytes of the {of_tokens} of the tokens"


def test_a_step_with_a_survey_is_whole_on_every_rank() -> None:
    batch = make_batch(groups=make_groups(num_groups=4))
    survey = config(loss={"top_entropy_share": 0.5})
    for share in shares(batch, Ranks(3), survey).values():
        for group, whole in zip(share.groups, batch.groups, strict=True):
            for rollout, original in zip(group.rollouts, whole.rollouts, strict=True):
                np.testing.assert_array_equal(rollout.completion.token_ids, original.completion.token_ids)


def test_every_rank_knows_the_weights_and_the_rewards_of_all_completions() -> None:
    groups = [
        replace(
            group,
            rollouts=tuple(
                replace(rollout, weight=0.1 * index, reward=None if index % 2 else rollout.advantage)
                for index, rollout in enumerate(group.rollouts)
            ),
        )
        for group in mixed_groups()
    ]
    for share in shares(make_batch(groups=groups), Ranks(3), config()).values():
        for group, whole in zip(share.groups, groups, strict=True):
            assert [(r.weight, r.reward) for r in group.rollouts] == [(r.weight, r.reward) for r in whole.rollouts]
