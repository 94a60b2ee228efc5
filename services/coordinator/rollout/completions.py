"""Sampling of one group's completions, until no completion is missing or the generator is lost."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from services.coordinator.rollout.groups import SettledGroup
from services.coordinator.rollout.pause import Pause
from services.coordinator.rollout.rounds import EpisodeTurns, TurnRounds
from services.coordinator.workers.claims import Binding
from services.coordinator.workers.deadlines import sampling_timeout_s
from services.coordinator.workers.deterministic_batches import Seat
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.group_progress import GroupProgress, GrowingGroup, resumable_tokens
from services.coordinator.workers.lost_work import WorkFailed
from shoal.chat_templates.completion_text import text_decoder
from shoal.config.live import LiveConfig
from shoal.rollout import Completion, Prompt, SamplingParams, WeightVersion
from shoal.telemetry import metrics, names, trace

_SAMPLING = metrics.gauge(names.RUN_SAMPLING)


@dataclass
class GroupRequest:
    """The request for one group's completions, and the objects that receive the completions."""

    group: SettledGroup
    progress: GroupProgress
    """The delivered completions, including those of lost generators."""
    sampling: SamplingParams
    request_id: str
    on_begin: Callable[[], None]
    """Called when a generator begins the group."""
    seat: Seat | None
    """The group's seat in its batch, in a deterministic run; None for episodes."""
    turns: TurnRounds | None = None
    """The rounds in which its episodes take their turns, in a deterministic run."""
    is_greedy: bool = False
    """Whether it is the greedy sample of the group."""
    sampled: GrowingGroup = field(init=False)
    """The completions for the reward service, as they arrive."""

    def __post_init__(self) -> None:
        self.sampled = GrowingGroup(self.progress.in_order)


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to play, in training or in an evaluation."""

    name: str
    """A name that is unique in the run. An episode that is issued again gets another name."""
    prompt: Prompt
    """The prompt, which names an environment."""
    index: int
    """The index of the sample in its group."""
    seed: int
    """The policy's seed; each turn has a seed derived from it."""
    environment_seed: int
    """The seed of the environment's draws, equal for all samples of a group."""
    sampling: SamplingParams
    priority: int
    """The priority for `GeneratorPool.room`."""
    version: WeightVersion | None = None
    """The version that samples every turn of an evaluation; None for training, with any generator's weights."""
    turns: EpisodeTurns | None = None
    """The episode's part in the rounds of turns, in a deterministic run."""


class EpisodeSampling(Protocol):
    """Gets the completions of prompts that name an environment."""

    async def sample(self, request: GroupRequest, awaits: Callable[[int], None]) -> None:
        """Adds the completions that a group lacks. Calls `awaits` with each change of the number being sampled."""
        ...

    async def answer(self, episodes: Sequence[EpisodeRequest]) -> tuple[Completion, ...]:
        """Returns the completions of an evaluation."""
        ...


class CompletionSampler:
    """Gets the completions of groups, with texts, from generators."""

    def __init__(self, config: LiveConfig, pause: Pause, generators: GeneratorPool, tokenizer: Any) -> None:
        self._config = config
        self._pause = pause
        self._generators = generators
        self._tokenizer = tokenizer
        self.text_of = text_decoder(tokenizer)
        """Returns tokens as text, without special tokens except marks of thoughts."""
        self._num_awaited = 0

    @property
    def report_every_tokens(self) -> int:
        """The number of tokens between reports; 0 (no reports) in a deterministic run, which samples groups whole."""
        return 0 if self._config().run.deterministic else self._config().generator.report_every_tokens

    async def sample(self, request: GroupRequest) -> None:
        """Adds completions to `progress` and `sampled` of a request, as they arrive, until the group lacks none.

        Raises `WorkFailed` if another generator has to continue the group, and `DeadlineExceeded` after `timeout_s`.
        """
        progress, seat = request.progress, request.seat
        self.await_completions(len(progress.missing))
        try:
            if seat is not None and seat.is_sampled:
                self._take_again(request, seat)
            elif progress.missing:
                await self._sample_on_one(request)
        finally:
            self.await_completions(-len(progress.missing))

    def await_completions(self, change: int) -> None:
        """Changes the number of completions that are awaited from generators."""
        self._num_awaited += change
        _SAMPLING.set(self._num_awaited)

    def _take_again(self, request: GroupRequest, seat: Seat) -> None:
        """Adds the completions of a batch that was finished before a later failure."""
        request.on_begin()
        request.progress.generators[seat.worker_id] = None
        for completion in seat.completions:
            request.progress.finish(completion)
            request.sampled.add(completion)
            self.await_completions(-1)

    @property
    def timeout_s(self) -> float:
        """Maximum time to sample a group from its first token on. This limit may change while the run is active."""
        return sampling_timeout_s(self._config(), self._generators.pace)

    async def _sample_on_one(self, request: GroupRequest) -> None:
        group, seat, num_missing = request.group, request.seat, len(request.progress.missing)
        async with self._generators.room(num_missing, priority=group.order_number, seat=seat) as binding:
            worker_id = binding.member.record.worker_id
            with trace.span(names.GROUP_SAMPLE, parent=group.traceparent, group_id=group.group_id, worker_id=worker_id):
                for number in itertools.count():
                    call_id = f"{request.request_id}/call-{number}" if number else request.request_id
                    async with self._pause.sampling_for_training():
                        await self._receive(request, call_id, binding)
                        break
                    if seat is not None:
                        raise WorkFailed(binding.member.name, "it paused for an evaluation", is_loss=False)
                    # Another call continues from what this call has delivered.
                    binding.resize(0)
                    await self._pause.unpaused()
            request.sampled.complete()
        if seat is not None:
            seat.keep(worker_id, request.sampled.completions)

    async def _receive(self, request: GroupRequest, call_id: str, binding: Binding) -> None:
        """Adds completions as they arrive from one call."""
        completions = self._generators.sample(
            binding,
            request.group.prompt,
            request.progress,
            request.sampling,
            request_id=call_id,
            timeout_s=self.timeout_s,
            with_text=self.with_text,
            on_begin=request.on_begin,
            report_every_tokens=self.report_every_tokens,
            resumable=partial(resumable_tokens, stop_strings=request.sampling.stop_strings, decode=self._decode),
        )
        async with contextlib.aclosing(completions):
            async for completion in completions:
                request.sampled.add(completion)
                self.await_completions(-1)

    def _decode(self, token_ids: list[int]) -> str:
        """Returns tokens as the text in which an engine looks for stop strings."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    async def with_text(self, completion: Completion) -> Completion:
        """Returns the completion with its text, without special tokens except marks of thoughts."""
        return replace(completion, text=await asyncio.to_thread(self.text_of, completion.token_ids.tolist()))
