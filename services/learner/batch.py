"""From the groups of a train step to the tensors of this rank's forwards.

Letters for shapes: R tokens of a row, each prompt once; C completion tokens that are scored; N sequences (a prompt
with one completion) of about the same length L.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.grpo.packing import GroupLengths, Row, plan_packing
from shoal.rollout import FinishReason, Rollout, TrainBatch, TrainGroup
from shoal.wire import invalid

Int64Array = npt.NDArray[np.int64]

_SHORTEST_IN_BUCKET = 0.75
"""Sequences shorter than this share of a bucket's longest go to the next bucket: what attention pads at most."""


@dataclass(frozen=True)
class Layout:
    """How attention finds the sequences of a row.

    A prompt stands in the row once; each of its completions attends to it as if it stood right before. So attention
    copies prompt and completion together into sequences, padded at the end to the lengths of a few buckets, and takes
    each token's output from one of them. Padding stands after everything that is causal before it: no mask is needed.
    """

    buckets: tuple[Tensor, ...]
    """[N, L] each: where in the row the tokens of N sequences are; padding repeats the sequence's last token."""
    output_R: Tensor
    """[R] where a token's output is among the buckets' tokens, laid end to end."""

    def to(self, device: torch.device) -> "Layout":
        return Layout(tuple(bucket.to(device) for bucket in self.buckets), self.output_R.to(device))


@dataclass(frozen=True)
class PackedRow:
    """One forward of one rank."""

    token_ids_R: Tensor
    """[R] int64."""
    positions_R: Tensor
    """[R] int64, counted from the beginning of the sequence's prompt."""
    layout: Layout
    predicting_C: Tensor
    """[C] where in the row the token is whose output predicts the scored one."""
    targets_C: Tensor
    """[C] int64, the scored tokens."""
    at_C: Tensor
    """[C] int64, where the scored token is among its mini-batch's `LossTokens`; -1 for one that is not."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_R)

    def to(self, device: torch.device) -> "PackedRow":
        return PackedRow(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def check_batch(batch: TrainBatch, *, vocab_size: int, max_positions: int | None) -> None:
    """Raises `InvalidArgument` that names the group and what is wrong with it: the model must not meet it."""
    if not any(num_loss_tokens(group) for group in batch.groups):
        raise invalid("groups", "there is no completion token to train on")
    for group in batch.groups:
        name = f"group {group.group_id}"
        if not len(group.prompt_token_ids):
            raise invalid("group.prompt_token_ids", f"{name} has an empty prompt: nothing predicts its first token")
        check_tokens(group.prompt_token_ids, vocab_size, "group.prompt_token_ids", name)
        for rollout in group.rollouts:
            completion = rollout.completion
            name = f"group {group.group_id}, sample {completion.sample_index}"
            if completion.finish_reason is FinishReason.ABORT:
                raise invalid("completion.finish_reason", f"{name} was aborted; aborted completions are not trained on")
            if not np.isfinite(rollout.advantage):
                raise invalid("rollout.advantage", f"{name} must be finite (given: {rollout.advantage})")
            if rollout.token_advantages is not None and not np.isfinite(rollout.token_advantages).all():
                raise invalid("rollout.token_advantages", f"{name} must have finite ones")
            if not (np.isfinite(rollout.weight) and rollout.weight >= 0):
                raise invalid("rollout.weight", f"{name} must be at least 0 and finite (given: {rollout.weight})")
            check_tokens(completion.token_ids, vocab_size, "completion.token_ids", name)
            length = len(group.prompt_token_ids) + completion.num_tokens
            if max_positions is not None and length > max_positions:
                raise invalid(
                    "completion.token_ids",
                    f"{name} is {length} tokens with its prompt; the model takes {max_positions}",
                )


def check_rewards(batch: TrainBatch, objective: str) -> None:
    """Raises `InvalidArgument` when a completion has no reward and the objective asks for it."""
    if objective != "topr":
        return
    for group in batch.groups:
        for rollout in group.rollouts:
            if rollout.reward is None:
                raise invalid(
                    "rollout.reward",
                    f"group {group.group_id}, sample {rollout.completion.sample_index} has none: loss.objective topr "
                    "tells rewarded completions from others",
                )


def check_tokens(token_ids: npt.NDArray[np.int32], vocab_size: int, field: str, name: str) -> None:
    """Raises `InvalidArgument` when a token is none of the model's."""
    if len(token_ids) and (int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size):
        raise invalid(
            field,
            f"{name} has token ids from {token_ids.min()} to {token_ids.max()}; the model's are 0 to {vocab_size - 1}",
        )


def num_loss_tokens(group: TrainGroup) -> int:
    """Completion tokens of a group that count in the loss."""
    return sum(int(loss_mask(rollout).sum()) for rollout in group.rollouts)


def token_starts(groups: Sequence[TrainGroup]) -> list[Int64Array]:
    """Of each rollout of each group, where its first token is, all tokens that count in the loss laid end to end."""
    starts, end = [], 0
    for group in groups:
        ends = end + np.cumsum([0, *(int(loss_mask(rollout).sum()) for rollout in group.rollouts)])
        starts.append(ends[:-1])
        end = int(ends[-1])
    return starts


def loss_mask(rollout: Rollout) -> npt.NDArray[np.bool_]:
    """[T] which tokens of the completion count in the loss."""
    mask = rollout.completion.loss_mask
    return np.ones(rollout.completion.num_tokens, dtype=bool) if mask is None else mask


def cut_mini_batches(groups: Sequence[TrainGroup], num_mini_batches: int) -> list[tuple[TrainGroup, ...]]:
    """Whole groups in issue order, cut as evenly as can be. Those without a token to train on fall away.

    A step may hold fewer groups than the configuration says; then it may have fewer mini-batches too.
    """
    edges = np.linspace(0, len(groups), num_mini_batches + 1).round().astype(int)
    cut = [tuple(groups[start:end]) for start, end in pairwise(edges)]
    return [part for part in cut if any(num_loss_tokens(group) for group in part)]


def pack_for_rank(
    groups: Sequence[TrainGroup], *, max_tokens: int, rank: int, num_ranks: int
) -> tuple[list[PackedRow], int]:
    """This rank's rows of a mini-batch, as many as any other rank has, and the number of rows that hold anything."""
    lengths = [
        GroupLengths(len(group.prompt_token_ids), tuple(rollout.completion.num_tokens for rollout in group.rollouts))
        for group in groups
    ]
    plan = plan_packing(lengths, max_tokens=max_tokens, num_ranks=num_ranks)
    starts = token_starts(groups)
    return [pack_row(groups, row, starts) for row in plan.of_rank(rank)], plan.num_rows


def pack_row(groups: Sequence[TrainGroup], row: Row, starts: Sequence[Int64Array]) -> PackedRow:
    """Lays the pieces of a row end to end. A row with nothing to score is one that keeps step.

    `starts` is what `token_starts` says of the groups.
    """
    token_ids: list[npt.NDArray[np.int32]] = []
    positions: list[Int64Array] = []
    sequences: list[Int64Array] = []
    predicting: list[Int64Array] = []
    targets: list[npt.NDArray[np.int32]] = []
    at: list[Int64Array] = []
    end = 0
    for piece in row:
        prompt = groups[piece.group].prompt_token_ids
        prompt_at = np.arange(end, end + len(prompt))
        token_ids.append(prompt)
        positions.append(np.arange(len(prompt)))
        end += len(prompt)
        for index in piece.completions:
            rollout = groups[piece.group].rollouts[index]
            completion = rollout.completion
            completion_at = np.arange(end, end + completion.num_tokens)
            sequence = np.concatenate([prompt_at, completion_at])
            counts = loss_mask(rollout)
            start = starts[piece.group][index]
            token_ids.append(completion.token_ids)
            positions.append(np.arange(len(prompt), len(sequence)))
            sequences.append(sequence)
            predicting.append(sequence[len(prompt) - 1 : -1][counts])
            targets.append(completion.token_ids[counts])
            at.append(np.arange(start, start + int(counts.sum())))
            end += completion.num_tokens
    if not sum(map(len, targets)):
        return _idle_row()
    return PackedRow(
        token_ids_R=_tensor(token_ids, torch.int64),
        positions_R=_tensor(positions, torch.int64),
        layout=make_layout(sequences, end),
        predicting_C=_tensor(predicting, torch.int64),
        targets_C=_tensor(targets, torch.int64),
        at_C=_tensor(at, torch.int64),
    )


def _idle_row() -> PackedRow:
    """The shortest row: it costs next to nothing and adds nothing, but takes part in every collective."""
    return sequence_row([np.zeros(2, dtype=np.int32)])


def sequence_row(sequences: Sequence[npt.NDArray[np.int32]]) -> PackedRow:
    """A row of whole sequences of at least two tokens, in which every token but the first is scored."""
    lengths = [len(sequence) for sequence in sequences]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    at = [np.arange(start, start + length) for start, length in zip(starts[:-1], lengths, strict=True)]
    targets = _tensor([sequence[1:] for sequence in sequences], torch.int64)
    return PackedRow(
        token_ids_R=_tensor(sequences, torch.int64),
        positions_R=_tensor([np.arange(length) for length in lengths], torch.int64),
        layout=make_layout(at, int(starts[-1])),
        predicting_C=_tensor([places[:-1] for places in at], torch.int64),
        targets_C=targets,
        at_C=torch.full((len(targets),), -1),
    )


def make_layout(sequences: Sequence[Int64Array], num_tokens: int) -> Layout:
    """Buckets sequences, each given by where its tokens are in a row of `num_tokens`."""
    output = np.empty(num_tokens, dtype=np.int64)
    buckets: list[Int64Array] = []
    offset = 0
    for bucket in _bucket(sequences):
        longest = len(bucket[0])
        padded = np.stack([np.pad(places, (0, longest - len(places)), mode="edge") for places in bucket])
        for number, places in enumerate(bucket):
            start = offset + number * longest
            output[places] = np.arange(start, start + len(places))
        buckets.append(padded)
        offset += padded.size
    return Layout(tuple(torch.from_numpy(bucket) for bucket in buckets), torch.from_numpy(output))


def _bucket(sequences: Sequence[Int64Array]) -> list[list[Int64Array]]:
    """Sequences of similar length together, longest first."""
    buckets: list[list[Int64Array]] = []
    for places in sorted(sequences, key=len, reverse=True):
        if buckets and len(places) >= _SHORTEST_IN_BUCKET * len(buckets[-1][0]):
            buckets[-1].append(places)
        else:
            buckets.append([places])
    return buckets


def _tensor(arrays: Sequence[npt.NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
    # Concatenated into fresh memory: arrays from the wire are read-only.
    return torch.from_numpy(np.concatenate(arrays)).to(dtype)
