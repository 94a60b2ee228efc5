"""The contexts of a train step. A context is a prompt with the tokens that the policy saw after the prompt.

A completion follows the prompt of its group. If the episode of a completion has segments, the completion is cut, and
each segment follows its own prompt. The rest of a train step (losses, divisors, weights) knows only whole completions,
so an episode counts once, even if the episode has several segments.

Contexts hold views of the groups' arrays and copy no tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoal.arrays import BoolArray, Float32Array, Int32Array
from shoal.grpo.packing import GroupLengths
from shoal.rollout import Rollout, TrainGroup


class Stretch(NamedTuple):
    """Consecutive tokens of a completion, `start` to `end` (exclusive), that follow one prompt."""

    rollout: Rollout
    completion_index: int
    """Index of the completion among the completions of all groups."""
    start: int
    end: int
    first_at: int
    """Index of the stretch's first loss token among the concatenated loss tokens of all groups."""
    num_counted: int
    """The number of the tokens that count in the loss."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def token_ids(self) -> Int32Array:
        """The tokens, [end - start]."""
        return self.rollout.completion.token_ids[self.start : self.end]

    @property
    def counts(self) -> BoolArray | slice:
        """Whether each token counts in the loss, [end - start], or a slice of all tokens; an index of arrays."""
        mask = self.rollout.completion.loss_mask
        return slice(None) if mask is None else mask[self.start : self.end]

    @property
    def behavior_logprobs(self) -> Float32Array:
        """The behavior log-probabilities of the tokens that count, [num_counted]."""
        return self.rollout.completion.behavior_logprobs[self.start : self.end][self.counts]

    @property
    def advantages(self) -> Float32Array:
        """The advantages of the tokens that count, [num_counted] float32."""
        values = self.rollout.token_advantages
        if values is None:
            return np.full(self.num_counted, self.rollout.advantage, dtype=np.float32)
        return np.asarray(values, dtype=np.float32)[self.start : self.end][self.counts]


@dataclass(frozen=True)
class Context:
    """A prompt and the stretches of one group that follow it. Each stretch sees the prompt, but no other stretch."""

    prompt_token_ids: Int32Array
    """The token ids of the prompt, [P]."""
    stretches: tuple[Stretch, ...]

    @property
    def lengths(self) -> GroupLengths:
        return GroupLengths(len(self.prompt_token_ids), tuple(stretch.num_tokens for stretch in self.stretches))


class Contexts(Sequence[Context]):
    """The contexts of groups, in order. Segments of a group that have the same prompt share a context.

    A context is made when it is read: a rank reads only the contexts of its own rows, but needs the lengths of all.
    """

    def __init__(self, groups: Sequence[TrainGroup]) -> None:
        self.lengths: list[GroupLengths] = []
        self._contexts: list[Context | tuple[TrainGroup, int, int]] = []
        """Contexts, and the arguments of `_contexts_of` for contexts that are not made yet."""
        index = first_at = 0
        for group in groups:
            completions = [rollout.completion for rollout in group.rollouts]
            if completions and all(
                completion.loss_mask is None and completion.episode is None for completion in completions
            ):
                lengths = tuple(completion.num_tokens for completion in completions)
                self.lengths.append(GroupLengths(len(group.prompt_token_ids), lengths))
                self._contexts.append((group, index, first_at))
                first_at += sum(lengths)
            else:
                made = _contexts_of(group, index, first_at)
                self.lengths += [context.lengths for context in made]
                self._contexts += made
                first_at += sum(stretch.num_counted for context in made for stretch in context.stretches)
            index += len(completions)

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, number: int) -> Context:  # type: ignore[override]
        context = self._contexts[number]
        if not isinstance(context, Context):
            (context,) = _contexts_of(*context)
            self._contexts[number] = context
        return context

    def completion_index(self, number: int, stretch: int) -> int:
        """Returns the index, among the completions of all groups, of a stretch of the context with this number."""
        context = self._contexts[number]
        return context.stretches[stretch].completion_index if isinstance(context, Context) else context[1] + stretch


def _contexts_of(group: TrainGroup, first_index: int, first_at: int) -> list[Context]:
    """Makes the contexts of a group from the indices of its first completion and of its first loss token."""
    found: dict[bytes, tuple[Int32Array, list[Stretch]]] = {}
    for index, rollout in enumerate(group.rollouts, start=first_index):
        for segment in rollout.completion.segments(group.prompt_token_ids):
            num_counted = _num_counted(rollout, segment.start, segment.end)
            stretch = Stretch(rollout, index, segment.start, segment.end, first_at, num_counted)
            prompt = segment.prompt_token_ids
            key = b"" if prompt is group.prompt_token_ids else prompt.tobytes()
            found.setdefault(key, (prompt, []))[1].append(stretch)
            first_at += num_counted
    return [Context(prompt, tuple(stretches)) for prompt, stretches in found.values()]


def stretches_of(groups: Sequence[TrainGroup]) -> list[Stretch]:
    """Returns the stretches of `groups` in the order of their tokens."""
    stretches = [stretch for context in Contexts(groups) for stretch in context.stretches]
    return sorted(stretches, key=lambda stretch: stretch.first_at)


def num_loss_tokens(rollout: Rollout) -> int:
    """Counts the tokens of a completion that count in the loss."""
    return _num_counted(rollout, 0, rollout.completion.num_tokens)


def has_loss_token(group: TrainGroup) -> bool:
    """Returns whether any token of a group's completions counts in the loss."""
    return any(map(num_loss_tokens, group.rollouts))


def _num_counted(rollout: Rollout, start: int, end: int) -> int:
    mask = rollout.completion.loss_mask
    return end - start if mask is None else int(np.count_nonzero(mask[start:end]))
