"""How ranks share a row. What they compute together is tests/integration's."""

import pytest
import torch
import torch.distributed as dist

from services.learner.batch import pack_for_rank
from services.learner.sequence_parallel import SequenceGroup, check_heads, share_of
from shoal.errors import InvalidArgument
from tests.train_batches import make_groups


def group_of(place: int, size: int) -> SequenceGroup:
    """A group that nothing is sent through."""
    return SequenceGroup(dist.ProcessGroup(place, size), place=place, size=size)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_token_of_a_row_is_on_one_rank_and_scored_by_one(size: int) -> None:
    (row, *_), _ = pack_for_rank(make_groups(), max_tokens=200, rank=0, num_ranks=1)
    shares = [share_of(row, group_of(place, size)) for place in range(size)]
    lengths = {share.row.num_tokens for share in shares}
    assert len(lengths) == 1, f"shares of {lengths} tokens"
    tokens = torch.cat([share.row.token_ids_R for share in shares])
    assert torch.equal(tokens[: row.num_tokens], row.token_ids_R)
    assert 0 <= len(tokens) - row.num_tokens < size
    for place, share in enumerate(shares):
        mine = share.owner_C == place
        assert torch.equal(share.row.targets_C, row.targets_C[mine])
        predicting = share.row.token_ids_R[share.row.predicting_C]
        assert torch.equal(predicting, row.token_ids_R[row.predicting_C[mine]])
    assert sum(len(share.row.targets_C) for share in shares) == len(row.targets_C)


def test_heads_that_cannot_be_dealt_out_evenly_are_refused() -> None:
    check_heads(6, 3)
    with pytest.raises(InvalidArgument, match=r"sequence_parallel_size \(2\) must divide .* heads \(9\)"):
        check_heads(9, 2)
