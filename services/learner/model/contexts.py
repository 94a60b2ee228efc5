"""The contexts of a train step. A context is a prompt with the tokens that the policy saw after the prompt.

A completion follows the prompt of its group. If the episode of a completion has segments, the completion is cut, and
each segment follows its own prompt. The rest of a train step (losses, divisors, weights) knows only whole completions,
so an episode counts once, even if the episode has several segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.arrays import Int32Array
from shoal.rollout import Completion, Rollout, TrainGroup


@dataclass(frozen=True)
class Stretch:
    """Consecutive tokens of a completion, `start` to `end` (exclusive), that follow one prompt."""

    completion: Completion
    start: int
    end: int
    counts: npt.NDArray[np.bool_]
    """Whether each token counts in the loss, [end - start]."""
    first_at: int
    """Index of the stretch's first loss token among the concatenated loss tokens of all groups."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def token_ids(self) -> Int32Array:
        """The tokens, [end - start]."""
        return self.completion.token_ids[self.start : self.end]


@dataclass(frozen=True)
class Context:
    """A prompt and the stretches of one group that follow it. Each stretch sees the prompt, but no other stretch."""

    prompt_token_ids: Int32Array
    """The token ids of the prompt, [P]."""
    stretches: tuple[Stretch, ...]


def contexts_of(groups: Sequence[TrainGroup]) -> list[Context]:
    """Returns the contexts of `groups`, in order. Segments of a group that have the same prompt share a context."""
    contexts, at = [], 0
    for group in groups:
        found: dict[bytes, tuple[Int32Array, list[Stretch]]] = {}
        for rollout in group.rollouts:
            completion, mask = rollout.completion, loss_mask(rollout)
            for segment in completion.segments(group.prompt_token_ids):
                counts = mask[segment.start : segment.end]
                stretch = Stretch(completion, segment.start, segment.end, counts, at)
                prompt = segment.prompt_token_ids
                key = b"" if prompt is group.prompt_token_ids else prompt.tobytes()
                found.setdefault(key, (prompt, []))[1].append(stretch)
                at += int(counts.sum())
        contexts += [Context(prompt, tuple(stretches)) for prompt, stretches in found.values()]
    return contexts


def loss_mask(rollout: Rollout) -> npt.NDArray[np.bool_]:
    """Returns which tokens of the completion count in the loss, [T]."""
    mask = rollout.completion.loss_mask
    return np.ones(rollout.completion.num_tokens, dtype=bool) if mask is None else mask
