"""Packing: the tensors of this rank's forwards, from the groups of a train step.

The plan needs the lengths of all groups. A rank reads the tokens of its own rows alone, each row when its turn comes.

Letters for shapes: R tokens of a row, each prompt once; C completion tokens that are scored; N sequences (a prompt
with one completion) of about the same length L; K tokens of the largest support in a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.learner.model.contexts import Context, Contexts, Stretch, has_loss_token
from services.learner.model.transfers import moved
from shoal.grpo.packing import GroupLengths, PackingPlan, Row, plan_packing
from shoal.rollout import Support, TrainGroup

Int64Array = npt.NDArray[np.int64]

_SHORTEST_IN_BUCKET = 0.75
"""Sequences shorter than this share of a bucket's longest go to the next bucket, which bounds the padding."""


@dataclass(frozen=True)
class Layout:
    """The sequences of a row, for attention.

    The row contains a prompt once, and each completion attends to the prompt as if it followed the prompt directly. So
    attention copies each prompt and completion into a sequence, padded at the end to the length of its bucket, and
    takes each token's output from one of the sequences. Padding comes last, so causal attention needs no mask for it.
    """

    buckets: tuple[Tensor, ...]
    """For each bucket, the row indices of N sequences' tokens, [N, L]; padding repeats a sequence's last token."""
    output_R: Tensor | None
    """The index of each token's output, [R], among the concatenated tokens of the buckets. None if the row is one
    sequence, in order: then there are no buckets, and attention takes the row as it is."""

    @property
    def longest(self) -> int:
        """The length of the longest sequence, in tokens; 0 without buckets."""
        return max((bucket.shape[1] for bucket in self.buckets), default=0)

    @cached_property
    def gathered_T(self) -> Tensor:
        """The row indices of the tokens of all buckets, concatenated, [T]."""
        return torch.cat([bucket.flatten() for bucket in self.buckets])

    @cached_property
    def starts_S(self) -> Tensor:
        """The index in `gathered_T` at which each sequence starts, followed by T; int32."""
        lengths = [bucket.shape[1] for bucket in self.buckets for _ in bucket]
        return moved(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), self.buckets[0].device)

    def to(self, device: torch.device) -> "Layout":
        output_R = None if self.output_R is None else moved(self.output_R, device)
        return Layout(tuple(moved(bucket, device) for bucket in self.buckets), output_R)


class _Sequence(NamedTuple):
    """A prompt with a completion that follows it, as row indices."""

    prompt: range
    completion: range

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class PackedRow:
    """The input of one forward of one rank."""

    token_ids_R: Tensor
    """The tokens of the row, [R] int64."""
    positions_R: Tensor
    """The positions of the tokens, [R] int64, counted from the beginning of the sequence's prompt."""
    layout: Layout
    predicting_C: Tensor
    """For each scored token, the row index of the token whose output predicts it, [C]."""
    targets_C: Tensor
    """The scored tokens, [C] int64."""
    at_C: Tensor
    """The index of each scored token among its mini-batch's loss tokens, [C] int64; -1 for a token that is not one."""
    stretches: tuple[Stretch, ...] = ()
    """The stretches of the scored tokens, in their order; none if the tokens are not a mini-batch's."""
    support_CK: Tensor | None = None
    """The support of each scored token, [C, K] int64: the token first, -1 as padding. None means the vocabulary."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_R)

    def to(self, device: torch.device) -> "PackedRow":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: moved(value, device) for name, value in values.items() if isinstance(value, Tensor)}
        return PackedRow(**values | {"layout": self.layout.to(device)})


class PackedRows:
    """The rows of a rank, by forward. Each is packed when its turn comes, so that few exist at a time."""

    def __init__(self, contexts: Sequence[Context], plan: Sequence[Row]) -> None:
        """`plan` has the pieces of each row, whose groups are contexts."""
        self._contexts = contexts
        self._plan = plan

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[PackedRow]:
        return (pack_row(self._contexts, row) for row in self._plan)


def cut_mini_batches(groups: Sequence[TrainGroup], num_mini_batches: int) -> list[tuple[TrainGroup, ...]]:
    """Cuts groups into mini-batches of whole groups, in issue order, as evenly as possible.

    Mini-batches without a token to train on are left out. A step of few groups may also have fewer mini-batches.
    """
    edges = np.linspace(0, len(groups), num_mini_batches + 1).round().astype(int)
    cut = [tuple(groups[start:end]) for start, end in pairwise(edges)]
    return [part for part in cut if any(map(has_loss_token, part))]


def pack_for_rank(
    groups: Sequence[TrainGroup], *, max_tokens: int, rank: int, num_ranks: int
) -> tuple[PackedRows, int]:
    """Plans this rank's rows of a mini-batch. Every rank has the same number of rows.

    Also returns the number of rows, over all ranks, that are not empty.
    """
    contexts = Contexts(groups)
    plan = _plan(tuple(contexts.lengths), max_tokens, num_ranks)
    return PackedRows(contexts, plan.of_rank(rank)), plan.num_rows


def rollouts_of_ranks(
    groups: Sequence[TrainGroup],
    mini_batches: Sequence[tuple[TrainGroup, ...]],
    *,
    max_tokens: int,
    num_ranks: int,
) -> list[set[int]]:
    """Returns, for each rank, the indices of the rollouts of `groups` whose tokens are in its rows of a mini-batch."""
    starts = dict(zip(map(id, groups), accumulate((len(group.rollouts) for group in groups), initial=0), strict=False))
    found: list[set[int]] = [set() for _ in range(num_ranks)]
    for mini_batch in mini_batches:
        contexts, first = Contexts(mini_batch), starts[id(mini_batch[0])]
        plan = _plan(tuple(contexts.lengths), max_tokens, num_ranks)
        for rank, indices in enumerate(found):
            for piece in chain.from_iterable(plan.of_rank(rank)):
                indices.update(first + contexts.completion_index(piece.group, index) for index in piece.completions)
    return found


@lru_cache(maxsize=32)
def _plan(lengths: tuple[GroupLengths, ...], max_tokens: int, num_ranks: int) -> PackingPlan:
    # Rank 0 also needs the plan to share the step, and each epoch needs it again.
    return plan_packing(lengths, max_tokens=max_tokens, num_ranks=num_ranks)


def pack_row(contexts: Sequence[Context], row: Row) -> PackedRow:
    """Concatenates a row's pieces, whose `group` is an index of `contexts`. Makes an idle row if no token is scored."""
    token_ids: list[npt.NDArray[np.int32]] = []
    first_positions: list[int] = []
    sequences: list[_Sequence] = []
    stretches: list[Stretch] = []
    end = 0
    for piece in row:
        context = contexts[piece.group]
        prompt = range(end, end + len(context.prompt_token_ids))
        token_ids.append(context.prompt_token_ids)
        first_positions.append(0)
        end = prompt.stop
        for index in piece.completions:
            stretch = context.stretches[index]
            token_ids.append(stretch.token_ids)
            first_positions.append(len(prompt))
            sequences.append(_Sequence(prompt, range(end, end + stretch.num_tokens)))
            stretches.append(stretch)
            end += stretch.num_tokens
    num_counted = np.array([stretch.num_counted for stretch in stretches], dtype=np.int64)
    if not num_counted.sum():
        return idle_row()
    is_scored_R = np.zeros(end, dtype=bool)
    predicting_R = np.arange(-1, end - 1)
    for sequence, stretch in zip(sequences, stretches, strict=True):
        completion = sequence.completion
        is_scored_R[completion.start : completion.stop][stretch.counts] = True
        if completion:
            predicting_R[completion.start] = sequence.prompt.stop - 1
    lengths = np.array([len(part) for part in token_ids])
    token_ids_R = _tensor(token_ids, torch.int64)
    is_scored = torch.from_numpy(is_scored_R)
    return PackedRow(
        token_ids_R=token_ids_R,
        positions_R=torch.from_numpy(_ranges(first_positions, lengths)),
        layout=make_layout(sequences, end),
        predicting_C=torch.from_numpy(predicting_R)[is_scored],
        targets_C=token_ids_R[is_scored],
        at_C=torch.from_numpy(_ranges([stretch.first_at for stretch in stretches], num_counted)),
        stretches=tuple(stretches),
        support_CK=_support_tensor(
            [
                _support_rows(support.part(stretch.start, stretch.end))[stretch.counts]
                for stretch in stretches
                if (support := stretch.rollout.completion.support) is not None
            ]
        ),
    )


def idle_row() -> PackedRow:
    """Makes the shortest row. This row costs almost nothing and adds nothing, but takes part in every collective."""
    return sequence_row([np.zeros(2, dtype=np.int32)])


def cut_sequences(sequences: Sequence[npt.NDArray[np.int32]], max_tokens: int) -> list[slice]:
    """Cuts sequences into consecutive chunks of at most `max_tokens`, or of one sequence that is longer."""
    chunks: list[slice] = []
    room = 0
    for index, sequence in enumerate(sequences):
        if not chunks or len(sequence) > room:
            chunks.append(slice(index, index))
            room = max_tokens
        chunks[-1] = slice(chunks[-1].start, index + 1)
        room -= len(sequence)
    return chunks


def sequence_row(sequences: Sequence[npt.NDArray[np.int32]], supports: Sequence[Support] = ()) -> PackedRow:
    """Packs whole sequences of at least two tokens into a row that scores every token except the first of each.

    With `supports` (one for each sequence), the row scores only a sequence's last tokens, as many as have a support.
    """
    lengths = [len(sequence) for sequence in sequences]
    num_scored = [len(support.counts) for support in supports] or [length - 1 for length in lengths]
    firsts = [length - num for length, num in zip(lengths, num_scored, strict=True)]
    at = [range(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]
    targets = _tensor([sequence[first:] for sequence, first in zip(sequences, firsts, strict=True)], torch.int64)
    return PackedRow(
        token_ids_R=_tensor(sequences, torch.int64),
        positions_R=torch.from_numpy(_ranges([0] * len(lengths), np.array(lengths))),
        layout=make_layout([_Sequence(range(0), indices) for indices in at], sum(lengths)),
        predicting_C=torch.from_numpy(
            _ranges(
                [indices.start + first - 1 for indices, first in zip(at, firsts, strict=True)], np.array(num_scored)
            )
        ),
        targets_C=targets,
        at_C=torch.full((len(targets),), -1),
        support_CK=_support_tensor([_support_rows(support) for support in supports]),
    )


def _support_rows(support: Support) -> Int64Array:
    """Returns the supports of a completion's tokens, [T, K], each padded with -1."""
    rows = np.full((len(support.counts), int(support.counts.max(initial=1))), -1, dtype=np.int64)
    rows[np.arange(rows.shape[1]) < support.counts[:, None]] = support.token_ids
    return rows


def _support_tensor(supports: Sequence[Int64Array]) -> Tensor | None:
    """Returns the supports of a row, [C, K]; None for a row without supports."""
    if not supports:
        return None
    largest = max(rows.shape[1] for rows in supports)
    padded = [np.pad(rows, ((0, 0), (0, largest - rows.shape[1])), constant_values=-1) for rows in supports]
    return torch.from_numpy(np.concatenate(padded))


def make_layout(sequences: Sequence[_Sequence], num_tokens: int) -> Layout:
    """Makes the layout of a row of `num_tokens`."""
    if len(sequences) == 1 and sequences[0].num_tokens == num_tokens:
        return Layout((), None)
    output_R = np.empty(num_tokens, dtype=np.int64)
    buckets: list[Int64Array] = []
    offset = 0
    for bucket in _bucket(sequences):
        values = [(s.prompt.start, s.completion.start, len(s.prompt), s.num_tokens) for s in bucket]
        prompt_N1, completion_N1, num_prompt_N1, length_N1 = np.array(values).T[:, :, None]
        at_L = np.arange(bucket[0].num_tokens)
        inside_NL = np.minimum(at_L, length_N1 - 1)
        is_prompt_NL = inside_NL < num_prompt_N1
        index_NL = inside_NL + np.where(is_prompt_NL, prompt_N1, completion_N1 - num_prompt_N1)
        is_token_NL = at_L < length_N1
        output_R[index_NL[is_token_NL]] = offset + np.flatnonzero(is_token_NL)
        buckets.append(index_NL)
        offset += index_NL.size
    return Layout(tuple(map(torch.from_numpy, buckets)), torch.from_numpy(output_R))


def _bucket(sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
    """Puts sequences of similar length together, longest first."""
    buckets: list[list[_Sequence]] = []
    for sequence in sorted(sequences, key=lambda sequence: sequence.num_tokens, reverse=True):
        if buckets and sequence.num_tokens >= _SHORTEST_IN_BUCKET * buckets[-1][0].num_tokens:
            buckets[-1].append(sequence)
        else:
            buckets.append([sequence])
    return buckets


def _ranges(firsts: Sequence[int], lengths: Int64Array) -> Int64Array:
    """Concatenates ranges of integers, each given by its first value and its length."""
    before = np.cumsum(lengths) - lengths
    ranges: Int64Array = np.arange(lengths.sum()) + np.repeat(np.array(firsts, dtype=np.int64) - before, lengths)
    return ranges


def _tensor(arrays: Sequence[npt.NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
    # Concatenate even a single array: that copies, and arrays from the wire are read-only.
    return torch.from_numpy(np.concatenate(arrays)).to(dtype)
