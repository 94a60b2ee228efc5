"""Which completions share a forward pass, and on which rank. Integers only; the learner makes tensors of it.

A group's prompt is stored once in a row, however many of the group's completions stand in it: with short answers
to long prompts that is most of the tokens. A row holds whole pieces (a prompt with some of its completions); a piece
is a whole group where that fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.grpo.bins import balanced_partition, fewest_bins


@dataclass(frozen=True)
class GroupLengths:
    """How long a group is.

    Example: `GroupLengths(num_prompt_tokens=40, num_completion_tokens=(12, 7, 16))`.
    """

    num_prompt_tokens: int
    num_completion_tokens: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Some completions of one group, behind one copy of its prompt."""

    group: int
    """Index of the group."""
    completions: tuple[int, ...]
    """Indices of the completions within the group."""
    num_tokens: int
    """The prompt and these completions."""


Row = tuple[Piece, ...]
"""What one rank computes in one forward; empty where there is nothing left for it to do."""


@dataclass(frozen=True)
class PackingPlan:
    """Who computes what: `rows[forward][rank]`. Every rank has a row in every forward."""

    rows: tuple[tuple[Row, ...], ...]

    def of_rank(self, rank: int) -> tuple[Row, ...]:
        """The rows of one rank, in the order in which all ranks take theirs."""
        return tuple(forward[rank] for forward in self.rows)

    @property
    def num_rows(self) -> int:
        """Rows that hold anything."""
        return sum(1 for forward in self.rows for row in forward if row)


def plan_packing(groups: Sequence[GroupLengths], *, max_tokens: int, num_ranks: int) -> PackingPlan:
    """Packs groups into as few forwards as possible, each with one row for every rank.

    No row is longer than `max_tokens`, except one that holds a single completion which is longer by itself. Rows of
    one forward are about equally long, since the ranks wait for each other. Every completion is in exactly one row;
    depends on nothing but its arguments, so that every rank computes the same plan.

    Raises ValueError if `max_tokens` or `num_ranks` is below 1.
    """
    if max_tokens < 1 or num_ranks < 1:
        raise ValueError(f"max_tokens ({max_tokens}) and num_ranks ({num_ranks}) must be at least 1")
    total = sum(group.num_prompt_tokens + sum(group.num_completion_tokens) for group in groups)
    too_few = max(1, math.ceil(total / (max_tokens * num_ranks)))
    if bins := _balanced(groups, total, max_tokens, too_few * num_ranks):
        return _deal([_join(pieces, groups) for pieces in bins], num_ranks)
    # Prompts that are repeated in several rows take forwards of their own, so many where they are nearly as long as a
    # row that trying one number after the other would take minutes.
    bins = _fill([piece for index, group in enumerate(groups) for piece in _cut(index, group, max_tokens)], max_tokens)
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
    """Rows of about the same length, so many or fewer; None when one would be too long."""
    # No more of a group's completions in a piece than an even share, so that a larger group spreads over ranks.
    share = math.ceil(total / num_bins)
    pieces = [
        piece
        for index, group in enumerate(groups)
        for piece in _cut(index, group, min(max_tokens, group.num_prompt_tokens + share))
    ]
    bins = _spread(pieces, num_bins)
    return bins if _fits(bins, max_tokens) else None


def _cut(index: int, group: GroupLengths, max_tokens: int) -> list[Piece]:
    """Cuts a group into pieces of about the same length, none longer than `max_tokens` if that can be."""
    lengths = group.num_completion_tokens
    if not lengths:
        return []
    room = max_tokens - group.num_prompt_tokens
    # Long completions first: the last pieces are then filled up with short ones.
    order = sorted(range(len(lengths)), key=lambda completion: -lengths[completion])
    num_pieces = max(1, math.ceil(sum(lengths) / room)) if room > 0 else len(lengths)
    while num_pieces < len(lengths):
        pieces = _even(order, lengths, num_pieces)
        if all(sum(lengths[i] for i in piece) <= room or len(piece) == 1 for piece in pieces):
            break
        num_pieces += 1
    else:
        pieces = [[completion] for completion in order]
    return [
        Piece(index, tuple(sorted(piece)), group.num_prompt_tokens + sum(lengths[i] for i in piece)) for piece in pieces
    ]


def _even(order: Sequence[int], lengths: Sequence[int], num_pieces: int) -> list[list[int]]:
    pieces: list[list[int]] = [[] for _ in range(num_pieces)]
    loads = [0] * num_pieces
    for completion in order:
        least = loads.index(min(loads))
        pieces[least].append(completion)
        loads[least] += lengths[completion]
    return [piece for piece in pieces if piece]


def _spread(pieces: Sequence[Piece], num_bins: int) -> list[list[Piece]]:
    """The pieces in a given number of bins that are about equally long."""
    parts = balanced_partition([piece.num_tokens for piece in pieces], num_bins)
    return [[pieces[item] for item in items] for items in parts]


def _fill(pieces: Sequence[Piece], max_tokens: int) -> list[list[Piece]]:
    """The pieces in as few bins as can be."""
    bins = fewest_bins([piece.num_tokens for piece in pieces], max_tokens)
    return [[pieces[item] for item in items] for items in bins]


def _fits(bins: Sequence[Sequence[Piece]], max_tokens: int) -> bool:
    return all(len(pieces) < 2 or _load(pieces) <= max_tokens for pieces in bins)


def _load(pieces: Sequence[Piece]) -> int:
    return sum(piece.num_tokens for piece in pieces)


def _join(pieces: Sequence[Piece], groups: Sequence[GroupLengths]) -> Row:
    """A row in the order of groups; pieces of one group that met become one, with one prompt."""
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
    """Every rank gets as many rows, and about as many tokens; each takes its longest first, so that the rows of one
    forward are about equally long."""
    # A completion that is longer than a row takes the place of several: what it leaves empty is no forward.
    padded = [row for row in rows if row]
    num_forwards = max(1, math.ceil(len(padded) / num_ranks))
    padded += [()] * (num_forwards * num_ranks - len(padded))
    loads = [_load(row) for row in padded]
    ranks = balanced_partition(loads, num_ranks, same_count=True)
    by_rank = [[padded[item] for item in sorted(items, key=lambda item: -loads[item])] for items in ranks]
    return PackingPlan(tuple(zip(*by_rank, strict=True)))
