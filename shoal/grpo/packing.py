"""The packing plan: which completions share a forward pass, and on which rank. Integers only, no tensors.

A row contains a group's prompt once, however many of its completions follow: with short answers to long prompts that
saves most of the tokens. A row consists of pieces. Each piece is a prompt with some or all of its completions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.grpo.bins import balanced_partition, fewest_bins, longest_first


@dataclass(frozen=True)
class GroupLengths:
    """The lengths of a group's prompt and completions, in tokens.

    Example: `GroupLengths(num_prompt_tokens=40, num_completion_tokens=(12, 7, 16))`.
    """

    num_prompt_tokens: int
    num_completion_tokens: tuple[int, ...]


class Piece(NamedTuple):
    """Some completions of one group, and one copy of the group's prompt before them."""

    group: int
    """Index of the group."""
    completions: tuple[int, ...]
    """Indices of the completions within the group."""
    num_tokens: int
    """The number of tokens of the prompt and of the completions in the piece."""


Row = tuple[Piece, ...]
"""The pieces that one rank computes in one forward; empty if no work is left for the rank."""


@dataclass(frozen=True)
class PackingPlan:
    """The rows of all ranks: `rows[forward][rank]`. Every rank has a row in every forward."""

    rows: tuple[tuple[Row, ...], ...]

    def of_rank(self, rank: int) -> tuple[Row, ...]:
        """Returns the rows of one rank, by forward."""
        return tuple(forward[rank] for forward in self.rows)

    @property
    def num_rows(self) -> int:
        """Number of rows that are not empty."""
        return sum(1 for forward in self.rows for row in forward if row)


def plan_packing(groups: Sequence[GroupLengths], *, max_tokens: int, num_ranks: int) -> PackingPlan:
    """Packs groups into as few forwards as possible, each with one row for every rank.

    No row is longer than `max_tokens`, except a row of a single completion that alone exceeds the limit. The rows of
    one forward are about equally long, since the ranks wait for one another. Every completion is in exactly one row.
    The plan depends only on the arguments, so every rank computes the same plan.

    Raises ValueError if `max_tokens` or `num_ranks` is below 1.
    """
    if max_tokens < 1 or num_ranks < 1:
        raise ValueError(f"max_tokens ({max_tokens}) and num_ranks ({num_ranks}) must be at least 1")
    total = sum(group.num_prompt_tokens + sum(group.num_completion_tokens) for group in groups)
    too_few = max(1, math.ceil(total / (max_tokens * num_ranks)))
    if bins := _balanced(groups, total, max_tokens, too_few * num_ranks):
        return _deal([_join(pieces, groups) for pieces in bins], num_ranks)
    # Repeated prompts add forwards. If prompts are nearly as long as a row they add so many that trying each number of
    # forwards would take minutes, so search by bisection.
    pieces = [piece for index, group in enumerate(groups) for piece in _cut(index, group, max_tokens)]
    bins = _packed(pieces, fewest_bins([piece.num_tokens for piece in pieces], max_tokens))
    enough = max(1, math.ceil(len(bins) / num_ranks))
    if balanced := _balanced(groups, total, max_tokens, enough * num_ranks):
        bins = balanced
    while enough - too_few > 1:
        between = (too_few + enough) // 2
        if balanced := _balanced(groups, total, max_tokens, between * num_ranks):
            bins, enough = balanced, between
        else:
            too_few = between
    return _deal([_join(pieces, groups) for pieces in bins], num_ranks)


def _balanced(groups: Sequence[GroupLengths], total: int, max_tokens: int, num_bins: int) -> list[list[Piece]] | None:
    """Packs at most `num_bins` rows of about equal length; None when a row would be too long."""
    # Give a piece at most an even share of the tokens, so that a large group spreads over the ranks.
    share = math.ceil(total / num_bins)
    pieces = [
        piece
        for index, group in enumerate(groups)
        for piece in _cut(index, group, min(max_tokens, group.num_prompt_tokens + share))
    ]
    bins = _packed(pieces, balanced_partition([piece.num_tokens for piece in pieces], num_bins))
    return bins if all(len(part) < 2 or _load(part) <= max_tokens for part in bins) else None


def _cut(index: int, group: GroupLengths, max_tokens: int) -> list[Piece]:
    """Cuts a group into pieces of about equal length, none longer than `max_tokens` if possible."""
    lengths = group.num_completion_tokens
    if not lengths:
        return []
    room = max_tokens - group.num_prompt_tokens
    if sum(lengths) <= room:
        return [Piece(index, tuple(range(len(lengths))), group.num_prompt_tokens + sum(lengths))]
    # Long completions first: short completions then even out the pieces.
    order = sorted(range(len(lengths)), key=lambda completion: -lengths[completion])
    num_pieces = max(1, math.ceil(sum(lengths) / room)) if room > 0 else len(lengths)
    while num_pieces < len(lengths):
        pieces = [piece for piece in longest_first(order, lengths, num_pieces) if piece]
        if all(sum(lengths[i] for i in piece) <= room or len(piece) == 1 for piece in pieces):
            break
        num_pieces += 1
    else:
        pieces = [[completion] for completion in order]
    return [
        Piece(index, tuple(sorted(piece)), group.num_prompt_tokens + sum(lengths[i] for i in piece)) for piece in pieces
    ]


def _packed(pieces: Sequence[Piece], bins: Sequence[Sequence[int]]) -> list[list[Piece]]:
    return [[pieces[item] for item in items] for items in bins]


def _load(pieces: Sequence[Piece]) -> int:
    return sum(piece.num_tokens for piece in pieces)


def _join(pieces: Sequence[Piece], groups: Sequence[GroupLengths]) -> Row:
    """Makes a row in the order of groups; pieces of one group in one bin become a single piece, with one prompt."""
    completions: dict[int, list[int]] = {}
    for piece in pieces:
        completions.setdefault(piece.group, []).extend(piece.completions)
    return tuple(
        Piece(
            index,
            tuple(sorted(joined)),
            groups[index].num_prompt_tokens + sum(groups[index].num_completion_tokens[i] for i in joined),
        )
        for index, joined in sorted(completions.items())
    )


def _deal(rows: Sequence[Row], num_ranks: int) -> PackingPlan:
    """Gives every rank the same number of rows and about the same number of tokens.

    Each rank takes its longest row first, so that the rows of one forward are about equally long.
    """
    # A completion longer than a row may leave bins empty. Drop these bins, since they need no forward.
    padded = [row for row in rows if row]
    num_forwards = max(1, math.ceil(len(padded) / num_ranks))
    padded += [()] * (num_forwards * num_ranks - len(padded))
    loads = [_load(row) for row in padded]
    ranks = balanced_partition(loads, num_ranks, same_count=True)
    by_rank = [[padded[item] for item in sorted(items, key=lambda item: -loads[item])] for items in ranks]
    return PackingPlan(tuple(zip(*by_rank, strict=True)))
