"""Consecutive tokens of a completion, in the order in which a generator sampled the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.arrays import Float32Array, Int32Array
from shoal.rollout import Completion, Support, VersionSpan


@dataclass(frozen=True)
class TokenRun:
    """`T` consecutive tokens of a completion: all tokens, or a part."""

    token_ids: Int32Array
    """The ids of the tokens, [T]."""
    logprobs: Float32Array
    """The log-probability of each token, [T], under the distribution from which the token was drawn; NaN if unknown."""
    version_spans: tuple[VersionSpan, ...]
    """The versions of the weights, in order, for all sampled tokens. Positions count from the run's first token."""
    support: Support | None = None
    """The supports of the tokens; None if supports were not requested."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        support = 0 if self.support is None else self.support.token_ids.nbytes + self.support.counts.nbytes
        return self.token_ids.nbytes + self.logprobs.nbytes + support

    def part(self, start: int, end: int) -> "TokenRun":
        """Returns the tokens `start` to `end` (exclusive)."""
        return TokenRun(
            self.token_ids[start:end],
            self.logprobs[start:end],
            spans_within(self.version_spans, start, end),
            None if self.support is None else self.support.part(start, end),
        )


NO_TOKENS = TokenRun(np.zeros(0, np.int32), np.zeros(0, np.float32), ())


def spans_within(spans: Sequence[VersionSpan], start: int, end: int) -> tuple[VersionSpan, ...]:
    """Returns the versions of the tokens `start` to `end` (exclusive), with positions that count from `start`."""
    cut = [VersionSpan(s.version, max(s.start, start) - start, min(s.end, end) - start) for s in spans]
    return tuple(span for span in cut if span.start < span.end)


def joined(runs: Sequence[TokenRun]) -> TokenRun:
    """Returns the tokens of several runs, one run after the other."""
    runs = [run for run in runs if run.num_tokens]
    if len(runs) < 2:
        return runs[0] if runs else NO_TOKENS
    supports = [run.support for run in runs if run.support is not None]
    return TokenRun(
        np.concatenate([run.token_ids for run in runs]),
        np.concatenate([run.logprobs for run in runs]),
        _joined_spans(runs),
        Support(np.concatenate([s.token_ids for s in supports]), np.concatenate([s.counts for s in supports]))
        if supports
        else None,
    )


def _joined_spans(runs: Sequence[TokenRun]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    offset = 0
    for run in runs:
        for span in run.version_spans:
            start, end = offset + span.start, offset + span.end
            if spans and spans[-1].version == span.version and spans[-1].end == start:
                start = spans.pop().start
            spans.append(VersionSpan(span.version, start, end))
        offset += run.num_tokens
    return tuple(spans)


def run_of(completion: Completion) -> TokenRun:
    """Returns the tokens of a completion."""
    return TokenRun(completion.token_ids, completion.behavior_logprobs, completion.version_spans, completion.support)
