"""A group that is being sampled: its request, its progress, and its callers."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.generator.batches import BatchPlace
from shoal.arrays import Int32Array
from shoal.errors import ShoalError
from shoal.rollout import Completion, SamplingParams
from shoal.token_run import TokenRun, joined


@dataclass(frozen=True)
class GroupRequest:
    """A request for one completion of the prompt per seed."""

    request_id: str
    prompt_token_ids: Int32Array
    """The token ids of the prompt, [P]."""
    sampling: SamplingParams
    seeds: tuple[int, ...]
    place: BatchPlace | None = None
    """The group's place in its batch, if it belongs to a batch."""
    prefixes: Mapping[int, Int32Array] = field(default_factory=dict)
    """The first tokens of completions, by sample index. Each has fewer than `sampling.max_completion_tokens`."""
    report_every_tokens: int = 0  # Report an unfinished completion this often; 0: never.

    def is_same_as(self, other: "GroupRequest") -> bool:
        return (
            self.seeds == other.seeds
            and self.place == other.place
            and self.sampling == other.sampling
            and self.prompt_token_ids.tobytes() == other.prompt_token_ids.tobytes()
            and self.prefixes.keys() == other.prefixes.keys()
            and all(tokens.tobytes() == other.prefixes[index].tobytes() for index, tokens in self.prefixes.items())
        )


@dataclass
class Update:
    """The changes of a group since the previous update."""

    has_begun: bool  # Whether the engine has sampled the group's first token since the last update.
    parts: list[tuple[int, int, TokenRun]]
    """Tokens of unfinished completions: sample index, number of tokens before them, tokens."""
    completions: list[Completion]
    """The finished completions, without the tokens of their prefixes."""


class Reader:
    """A caller of a group, and the updates that it has received."""

    def __init__(self) -> None:
        self._has_begun = False
        self._num_completions = 0
        self._num_runs: Counter[int] = Counter()

    def news(self, group: "Group") -> Update:
        """Returns all changes since the last call."""
        update = Update(
            has_begun=group.has_begun and not self._has_begun,
            parts=list(self._parts(group)),
            completions=group.finished[self._num_completions :],
        )
        self._has_begun, self._num_completions = group.has_begun, len(group.finished)
        return update

    def _parts(self, group: "Group") -> Iterator[tuple[int, int, TokenRun]]:
        for index, runs in group.runs.items():
            told = self._num_runs[index]
            num_new = sum(run.num_tokens for run in runs[told:])
            # Do not report the first token alone, unless no more tokens come.
            if num_new >= group.request.report_every_tokens or (num_new and group.error):
                self._num_runs[index] = len(runs)
                yield index, sum(run.num_tokens for run in runs[:told]), joined(runs[told:])


@dataclass
class Group:
    """The progress of a request."""

    request: GroupRequest
    finished: list[Completion] = field(default_factory=list)
    """The finished completions, in the order of their ends."""
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """The tasks of unfinished completions, by index of the seed."""
    error: ShoalError | None = None
    has_begun: bool = False
    """Whether the engine has sampled a token."""
    runs: dict[int, list[TokenRun]] = field(default_factory=dict)
    """The tokens of the unfinished completions, by index of the seed; empty if no caller asked for reports."""
    num_readers: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_complete(self) -> bool:
        return len(self.finished) == len(self.request.seeds)

    @property
    def missing(self) -> list[int]:
        """Indexes of seeds whose completions are neither finished nor being sampled."""
        done = {completion.sample_index for completion in self.finished}
        return [index for index in range(len(self.request.seeds)) if index not in done and index not in self.running]

    @property
    def num_bytes(self) -> int:
        return sum(completion.num_bytes for completion in self.finished)

    def sampled(self, index: int, run: TokenRun) -> None:
        """Records tokens of an unfinished completion."""
        is_first, self.has_begun = not self.has_begun, True
        if self.request.report_every_tokens:
            self.runs.setdefault(index, []).append(run)
        if is_first or len(self.runs.get(index, ())) > 1:
            self.wake_readers()

    def wake_readers(self) -> None:
        self.progress.set()
        self.progress = asyncio.Event()
