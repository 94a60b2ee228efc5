"""Sequence parallelism (DeepSpeed Ulysses, arXiv:2309.14509): the ranks of a group share the tokens of a row.

Each rank has an even share of a row's tokens for everything that looks at tokens one by one. For attention the ranks
trade: each gets all tokens of an even share of the heads, and gives them back afterwards. Scored tokens' values come
together on all ranks of the group before the loss, so that a loss sees whole completions.

Letters: R tokens of a row, S of them on this rank, C scored tokens of the row, H heads, D size of a head.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from services.learner.batch import Layout, PackedRow
from shoal.errors import InvalidArgument


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share each row, and which of them this one is."""

    group: dist.ProcessGroup
    place: int
    size: int


@dataclass(frozen=True)
class SharedLayout(Layout):
    """How attention finds the sequences of a row whose tokens several ranks hold."""

    group: SequenceGroup


@dataclass(frozen=True)
class RowShare:
    """This rank's part of a row."""

    row: PackedRow
    """Of its tokens S; of the scored ones those that they predict."""
    owner_C: Tensor
    """[C] the place of the rank that scores each of the whole row's tokens."""


def check_heads(num_heads: int, size: int) -> None:
    """Raises `InvalidArgument` when the heads cannot be dealt out evenly."""
    if num_heads % size:
        raise InvalidArgument(
            f"learner.sequence_parallel_size ({size}) must divide the model's attention heads ({num_heads}): each rank "
            "computes attention for its share of them"
        )


def share_of(row: PackedRow, group: SequenceGroup) -> RowShare:
    """This rank's part of a row that all ranks of the group have. Rows are filled up to a multiple of their number."""
    num_tokens = math.ceil(row.num_tokens / group.size)
    filling = num_tokens * group.size - row.num_tokens
    mine = slice(group.place * num_tokens, (group.place + 1) * num_tokens)
    owner_C = row.predicting_C // num_tokens
    is_mine_C = owner_C == group.place
    # What fills a row up belongs to no sequence; where attention has it take its output from does not matter.
    layout = SharedLayout(row.layout.buckets, pad(row.layout.output_R, (0, filling)), group)
    share = replace(
        row,
        token_ids_R=pad(row.token_ids_R, (0, filling))[mine],
        positions_R=pad(row.positions_R, (0, filling))[mine],
        layout=layout,
        predicting_C=row.predicting_C[is_mine_C] - mine.start,
        targets_C=row.targets_C[is_mine_C],
    )
    return RowShare(share, owner_C)


def gather_scored(values_C: tuple[Tensor, ...], share: RowShare, group: SequenceGroup) -> tuple[Tensor, ...]:
    """[C] each: the whole row's values from every rank's own, with gradient.

    The gradient of a value goes to the rank that has computed it, once, though every rank of the group has the loss:
    the sum of gradients over all ranks is then the gradient of that loss.
    """
    counts = torch.bincount(share.owner_C, minlength=group.size)
    longest = int(counts.max())
    mine = torch.stack([pad(values, (0, longest - len(values))) for values in values_C])
    gathered: Tensor = _Gather.apply(mine, group)
    # Tokens in order of rank, and within a rank in the row's order, as the ranks have them.
    order_C = torch.argsort(share.owner_C, stable=True)
    within_C = torch.arange(len(order_C), device=order_C.device) - (counts.cumsum(0) - counts)[share.owner_C[order_C]]
    column_C = torch.empty_like(order_C)
    column_C[order_C] = within_C
    return tuple(gathered[share.owner_C, number, column_C] for number in range(len(values_C)))


class _Gather(torch.autograd.Function):
    """[K, M] on each rank -> [P, K, M] on all, P ranks."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: SequenceGroup) -> Tensor:
        ctx.place = group.place
        parts = [torch.empty_like(mine) for _ in range(group.size)]
        dist.all_gather(parts, mine.contiguous(), group=group.group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.place], None


def heads_for_tokens(x_1HSD: Tensor, group: SequenceGroup) -> Tensor:
    """[1, H, S, D] -> [1, H / P, R, D]: every token of this rank's share of the heads.

    Keys and values may have fewer heads than the queries. Where the ranks cannot share them evenly, each is repeated
    as often as it takes: since they can share the queries' heads, a rank then has the keys that its queries look at.
    """
    if x_1HSD.shape[1] % group.size:
        x_1HSD = x_1HSD.repeat_interleave(group.size // math.gcd(x_1HSD.shape[1], group.size), dim=1)
    x_1SHD = x_1HSD.transpose(1, 2)
    return _all_to_all(x_1SHD, group, scatter=2, gather=1).transpose(1, 2)


def tokens_for_heads(x_1RHD: Tensor, group: SequenceGroup) -> Tensor:
    """[1, R, H / P, D] -> [1, S, H, D]: every head of this rank's share of the tokens."""
    return _all_to_all(x_1RHD, group, scatter=1, gather=2)


def _all_to_all(x: Tensor, group: SequenceGroup, *, scatter: int, gather: int) -> Tensor:
    # Loaded by whoever shares rows: everybody else does without.
    from deepspeed.sequence.layer import _SeqAllToAll

    traded: Tensor = _SeqAllToAll.apply(group.group, x, scatter, gather, 0)
    return traded
