"""The progress of one group at generators and reward services, so that no work is done twice."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

from shoal.arrays import Int32Array
from shoal.concurrency import Signal
from shoal.errors import Internal
from shoal.rollout import Completion, WeightVersion
from shoal.scores import Score
from shoal.token_run import NO_TOKENS, TokenRun, joined, run_of

_MAX_PREFIX_BYTES = 2 << 20
"""Size of all prefixes of one request: half of the largest message."""
_MAX_STEPS = 64
"""Tokens that are discarded at most to find a place from which to continue; else sampling starts over."""
_CONTEXT_TOKENS = 64
"""Tokens before a place that are decoded to know the text there."""


class GroupProgress:
    """The finished completions of a group, the first tokens of the others, and the scores so far."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self.completions: dict[int, Completion] = {}
        """By sample index."""
        self.scores: dict[int, Score] = {}
        """By sample index."""
        self.generators: dict[str, None] = {}
        """Worker ids of the generators that delivered something, in order."""
        self._prefixes: dict[int, TokenRun] = {}
        self._reports: dict[int, list[TokenRun]] = {}
        """The tokens that the current call has reported, after the prefix."""

    @property
    def missing(self) -> list[int]:
        """Sample indexes of the completions that are not finished."""
        return [index for index in range(len(self.seeds)) if index not in self.completions]

    @property
    def in_order(self) -> list[Completion]:
        """The finished completions, by sample index."""
        return [self.completions[index] for index in sorted(self.completions)]

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens of unfinished completions that need not be sampled again."""
        return sum(map(self._num_tokens, self.missing))

    @property
    def num_tokens_of_shortest(self) -> int:
        """Tokens so far of the unfinished completion that has the fewest; 0 if all are finished."""
        return min(map(self._num_tokens, self.missing), default=0)

    def _num_tokens(self, index: int) -> int:
        runs = (self._prefixes.get(index, NO_TOKENS), *self._reports.get(index, ()))
        return sum(run.num_tokens for run in runs)

    def is_of(self, version: WeightVersion) -> bool:
        """Returns whether all tokens so far were sampled under `version`."""
        runs = [*map(run_of, self.completions.values()), *self._prefixes.values()]
        runs += [run for reports in self._reports.values() for run in reports]
        return all(span.version == version for run in runs for span in run.version_spans)

    def begin_call(self, resumable: Callable[[Int32Array], int], max_tokens: int) -> dict[int, Int32Array]:
        """Returns the prefixes after which the next call continues, by sample index.

        `resumable` returns the number of first tokens after which a completion can continue; the rest is sampled again.
        `max_tokens` is the completion's limit.
        """
        longest = _MAX_PREFIX_BYTES // 4 // max(len(self.missing), 1)
        for index in self.missing:
            so_far = joined([self._prefixes.get(index, NO_TOKENS), *self._reports.get(index, ())])
            num_tokens = resumable(so_far.token_ids[: min(longest, max_tokens - 1)])
            self._prefixes[index] = so_far.part(0, num_tokens)
        self._reports.clear()
        return {index: self._prefixes[index].token_ids for index in self.missing}

    def report(self, index: int, start: int, run: TokenRun) -> None:
        """Adds tokens of an unfinished completion; `start` is the number of tokens between the prefix and them.

        A repeated call reports all its tokens again. Raises `Internal` if tokens before `start` are missing.
        """
        runs = self._reports.setdefault(index, [])
        known = sum(earlier.num_tokens for earlier in runs)
        if start > known:
            raise Internal(f"it reported token {start} of sample {index} before token {known}")
        if start + run.num_tokens > known:
            runs.append(run.part(known - start, run.num_tokens))

    def whole(self, rest: Completion, num_prefix_tokens: int) -> Completion:
        """Returns the whole completion: its seed, the first `num_prefix_tokens` of its prefix, then those of `rest`."""
        index = rest.sample_index
        prefix = self._prefixes.get(index, NO_TOKENS).part(0, num_prefix_tokens)
        run = joined([prefix, run_of(rest)])
        return replace(
            rest,
            seed=self.seeds[index],
            token_ids=run.token_ids,
            behavior_logprobs=run.logprobs,
            version_spans=run.version_spans,
            support=run.support,
        )

    def finish(self, completion: Completion) -> None:
        """Adds a finished completion."""
        self.completions[completion.sample_index] = completion
        self._prefixes.pop(completion.sample_index, None)
        self._reports.pop(completion.sample_index, None)


def whole_prefix(token_ids: Int32Array) -> int:
    """Returns the number of all given tokens, so that a completion continues after them."""
    return len(token_ids)


def resumable_tokens(token_ids: Int32Array, stop_strings: Sequence[str], decode: Callable[[list[int]], str]) -> int:
    """Returns the number of first tokens after which a completion can continue as if it had never stopped.

    An engine looks for stop strings only in tokens that it samples itself. So the text of the first tokens must not end
    with the beginning of a stop string, nor with a part of a character. All other settings of `SamplingParams` depend
    only on the next token, and on the number of tokens, which the generator counts from the completion's beginning.
    """
    if not stop_strings:
        return len(token_ids)
    beginnings = tuple({stop[:end] for stop in stop_strings for end in range(1, len(stop))} | {"\ufffd"})
    for end in range(len(token_ids), max(len(token_ids) - _MAX_STEPS, 0), -1):
        if not decode(token_ids[max(end - _CONTEXT_TOKENS, 0) : end].tolist()).endswith(beginnings):
            return end
    return 0


class GrowingGroup:
    """The completions of one group as they arrive. Each reader gets all of them from the first on."""

    def __init__(self, completions: Iterable[Completion] = ()) -> None:
        self.completions = list(completions)
        self._complete = False
        self._changed = Signal()

    def add(self, completion: Completion) -> None:
        """Adds a completion, and wakes the readers."""
        self.completions.append(completion)
        self._changed.notify()

    def complete(self) -> None:
        """Marks the group as complete: no more completions come."""
        self._complete = True
        self._changed.notify()

    async def begun(self) -> None:
        """Waits until a completion has arrived, or the group is complete without one."""
        while not (self.completions or self._complete):
            await self._changed.wait()

    async def completed(self) -> None:
        """Waits until the group is complete."""
        while not self._complete:
            await self._changed.wait()

    async def read(self) -> AsyncIterator[Completion]:
        """Yields all completions, and waits for those that have not arrived."""
        index = 0
        while True:
            changed = self._changed.next
            while index < len(self.completions):
                yield self.completions[index]
                index += 1
            if self._complete:
                return
            await changed.wait()
