"""Sharing of a row among ranks. tests/integration covers what they compute together."""

import pytest
import torch
import torch.distributed as dist

from services.learner.model.packing import pack_for_rank
from services.learner.model.sequence_parallel import SequenceGroup, share_of
from tests.support.train_batches import make_groups


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_token_of_a_row_is_on_one_rank_and_scored_by_one(size: int) -> None:
    (row, *_), _ = pack_for_rank(make_groups(), max_tokens=200, rank=0, num_ranks=1)
    groups = [SequenceGroup(dist.ProcessGroup(index, size), index=index, size=size) for index in range(size)]
    shares = [share_of(row, group) for group in groups]
    lengths = {share.row.num_tokens for share in shares}
    assert len(lengths) == 1, f"shares of {lengths} tokens"
    tokens = torch.cat([share.row.token_ids_R for share in shares])
    assert torch.equal(tokens[: row.num_tokens], row.token_ids_R)
    assert 0 <= len(tokens) - row.num_tokens < size
    for index, share in enumerate(shares):
        mine = share.owner_C == index
        assert torch.equal(share.row.targets_C, row.targets_C[mine])
        predicting = share.row.token_ids_R[share.row.predicting_C]
        assert torch.equal(predicting, row.token_ids_R[row.predicting_C[mine]])
    assert sum(len(share.row.targets_C) for share in shares) == len(row.targets_C)
