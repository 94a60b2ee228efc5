"""Sequence parallelism (DeepSpeed Ulysses, arXiv:2309.14509): the ranks of a group share the tokens of a row.

Outside attention each rank has an even share of a row's tokens. For attention the ranks exchange tokens for heads: each
rank gets all tokens of an even share of the heads, and returns them afterwards. The values of the scored tokens are
gathered on all ranks of the group before the loss, so that a loss sees whole completions.

Letters: P ranks, R tokens of a row, S of them on this rank, C scored tokens of the row, H heads, D size of a head.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from services.learner.model.packing import Layout, PackedRow


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share each row, and this rank's index among them."""

    group: dist.ProcessGroup
    index: int
    size: int


@dataclass(frozen=True)
class SharedLayout(Layout):
    """The layout of a row whose tokens several ranks share."""

    group: SequenceGroup


@dataclass(frozen=True)
class RowShare:
    """This rank's part of a row."""

    row: PackedRow
    """S tokens of the row, and the scored tokens that they predict."""
    owner_C: Tensor
    """For each scored token of the whole row, the index of the rank that scores the token, [C]."""


def share_of(row: PackedRow, group: SequenceGroup) -> RowShare:
    """Returns this rank's share of a row that all ranks of the group have. Padding makes all shares equally long."""
    num_tokens = math.ceil(row.num_tokens / group.size)
    num_padding = num_tokens * group.size - row.num_tokens
    mine = slice(group.index * num_tokens, (group.index + 1) * num_tokens)
    owner_C = row.predicting_C // num_tokens
    is_mine_C = owner_C == group.index
    # Padding belongs to no sequence; which output attention assigns to it does not matter.
    output_R = None if row.layout.output_R is None else pad(row.layout.output_R, (0, num_padding))
    share = replace(
        row,
        token_ids_R=pad(row.token_ids_R, (0, num_padding))[mine],
        positions_R=pad(row.positions_R, (0, num_padding))[mine],
        layout=SharedLayout(row.layout.buckets, output_R, group),
        predicting_C=row.predicting_C[is_mine_C] - mine.start,
        targets_C=row.targets_C[is_mine_C],
        support_CK=None if row.support_CK is None else row.support_CK[is_mine_C],
    )
    return RowShare(share, owner_C)


def gather_scored(values_C: tuple[Tensor, ...], share: RowShare, group: SequenceGroup) -> tuple[Tensor, ...]:
    """Gathers the whole row's values from all ranks, with gradient; each result is [C].

    Every rank of the group computes the same loss, but the gradient of a value goes only to the rank that computed the
    value. So the sum of gradients over all ranks is the gradient of the common loss.
    """
    counts = torch.bincount(share.owner_C, minlength=group.size)
    longest = int(counts.max())
    mine = torch.stack([pad(values, (0, longest - len(values))) for values in values_C])
    gathered: Tensor = _Gather.apply(mine, group)
    # The gathered values are in order of rank, and within a rank in the row's order.
    order_C = torch.argsort(share.owner_C, stable=True)
    within_C = torch.arange(len(order_C), device=order_C.device) - (counts.cumsum(0) - counts)[share.owner_C[order_C]]
    column_C = torch.empty_like(order_C)
    column_C[order_C] = within_C
    return tuple(gathered[share.owner_C, number, column_C] for number in range(len(values_C)))


class _Gather(torch.autograd.Function):
    """Gathers [K, M] from each rank as [P, K, M] on all ranks, with P ranks."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: SequenceGroup) -> Tensor:
        ctx.index = group.index
        parts = [torch.empty_like(mine) for _ in range(group.size)]
        dist.all_gather(parts, mine.contiguous(), group=group.group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.index], None


def heads_for_tokens(x_1HSD: Tensor, group: SequenceGroup) -> Tensor:
    """Exchanges [1, H, S, D] for [1, H / P, R, D]: every token of this rank's share of the heads.

    Keys and values may have fewer heads than the queries. If the ranks cannot split these heads evenly, each head is
    repeated until they can. So each rank has the keys of its queries.
    """
    if x_1HSD.shape[1] % group.size:
        x_1HSD = x_1HSD.repeat_interleave(group.size // math.gcd(x_1HSD.shape[1], group.size), dim=1)
    x_1SHD = x_1HSD.transpose(1, 2)
    return _all_to_all(x_1SHD, group, scatter=2, gather=1).transpose(1, 2)


def tokens_for_heads(x_1RHD: Tensor, group: SequenceGroup) -> Tensor:
    """Exchanges [1, R, H / P, D] for [1, S, H, D]: every head of this rank's share of the tokens."""
    return _all_to_all(x_1RHD, group, scatter=1, gather=2)


def _all_to_all(x: Tensor, group: SequenceGroup, *, scatter: int, gather: int) -> Tensor:
    # Imported only by learners whose ranks share rows.
    from deepspeed.sequence.layer import _SeqAllToAll

    exchanged: Tensor = _SeqAllToAll.apply(group.group, x, scatter, gather, 0)
    return exchanged
