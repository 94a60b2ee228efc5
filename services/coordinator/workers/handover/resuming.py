"""Where a completion with stop strings can go on on another generator."""

from collections.abc import Callable, Sequence

from shoal.arrays import Int32Array

_MAX_STEPS = 64
"""Tokens that are given up at most to find a place; beyond, the completion is sampled from its beginning."""
_CONTEXT_TOKENS = 64
"""Tokens before a place that are decoded to know the text there."""


def resumable_tokens(token_ids: Int32Array, stop_strings: Sequence[str], decode: Callable[[list[int]], str]) -> int:
    """Returns how many of the first tokens of a completion it can go on after, as if it had never stopped.

    An engine looks for stop strings in what it samples itself. So the text before the place must not end with the
    beginning of one, nor with a part of a character. All other settings of `SamplingParams` look at no token before the
    next one, and at the number of tokens, which the generator counts from the completion's beginning.
    """
    if not stop_strings:
        return len(token_ids)
    beginnings = tuple({stop[:end] for stop in stop_strings for end in range(1, len(stop))} | {"\ufffd"})
    for end in range(len(token_ids), max(len(token_ids) - _MAX_STEPS, 0), -1):
        if not decode(token_ids[max(end - _CONTEXT_TOKENS, 0) : end].tolist()).endswith(beginnings):
            return end
    return 0
