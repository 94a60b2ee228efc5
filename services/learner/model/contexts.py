"""The contexts of a train step. A context is a prompt with the tokens that the policy saw after the prompt.

A completion follows the prompt of its group. If the episode of a completion has segments, the completion is cut, and
each segment follows its own prompt. The rest of a train step (losses, divisors, weights) knows only whole completions,
so an episode counts once, even if the episode has several segments.

Contexts are made of all groups, on every rank, so they hold views of the groups' arrays and copy no tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.arrays import BoolArray, Float32Array, Int32Array
from shoal.rollout import Rollout, TrainGroup


@dataclass(frozen=True)
class Stretch:
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


def contexts_of(groups: Sequence[TrainGroup]) -> list[Context]:
    """Returns the contexts of `groups`, in order. Segments of a group that have the same prompt share a context."""
    contexts, at, index = [], 0, 0
    for group in groups:
        found: dict[bytes, tuple[Int32Array, list[Stretch]]] = {}
        for rollout in group.rollouts:
            for segment in rollout.completion.segments(group.prompt_token_ids):
                num_counted = _num_counted(rollout, segment.start, segment.end)
                stretch = Stretch(rollout, index, segment.start, segment.end, at, num_counted)
                prompt = segment.prompt_token_ids
                key = b"" if prompt is group.prompt_token_ids else prompt.tobytes()
                found.setdefault(key, (prompt, []))[1].append(stretch)
                at += num_counted
            index += 1
        contexts += [Context(prompt, tuple(stretches)) for prompt, stretches in found.values()]
    return contexts


def stretches_of(groups: Sequence[TrainGroup]) -> list[Stretch]:
    """Returns the stretches of `groups` in the order of their tokens."""
    stretches = [stretch for context in contexts_of(groups) for stretch in context.stretches]
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
