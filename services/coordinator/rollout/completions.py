"""The completions of one group from generators, until none is missing or the generator is lost."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.groups import SettledGroup
from services.coordinator.workers.batches import Seat
from services.coordinator.workers.claims import Binding
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.handover.group_progress import GroupProgress
from services.coordinator.workers.handover.resuming import resumable_tokens
from services.coordinator.workers.losses import WorkFailed
from services.coordinator.workers.rewards.reward_pool import GrowingGroup
from shoal.config import RunConfig
from shoal.rollout import Completion, SamplingParams
from shoal.telemetry import metrics, names, trace

_SAMPLING = metrics.gauge(names.RUN_SAMPLING)


class CompletionSampler:
    """Gets the completions of groups from generators, with their texts."""

    def __init__(self, config: RunConfig, controls: RunControls, generators: GeneratorPool, tokenizer: Any) -> None:
        self._config = config
        self._controls = controls
        self._generators = generators
        self._tokenizer = tokenizer
        self._num_awaited = 0

    @property
    def report_every_tokens(self) -> int:
        """The tokens between two reports; 0 for none, as where a group has to be sampled whole to be the same."""
        return 0 if self._config.run.deterministic else self._config.generator.report_every_tokens

    async def sample(
        self,
        group: SettledGroup,
        progress: GroupProgress,
        sampled: GrowingGroup,
        sampling: SamplingParams,
        request_id: str,
        on_begin: Callable[[], None],
        seat: Seat | None,
    ) -> None:
        """Adds the completions that a group lacks to `progress` and `sampled` as they arrive.

        `seat` is the group's in its batch. Raises `WorkFailed` when another generator has to go on with the group, and
        `DeadlineExceeded`.
        """
        self._await_completions(len(progress.missing))
        try:
            if seat is not None and seat.is_sampled:
                self._take_again(seat, progress, sampled, on_begin)
            elif progress.missing:
                await self._sample_on_one(group, progress, sampled, sampling, request_id, on_begin, seat)
        finally:
            self._await_completions(-len(progress.missing))

    def _await_completions(self, change: int) -> None:
        self._num_awaited += change
        _SAMPLING.set(self._num_awaited)

    def _take_again(
        self, seat: Seat, progress: GroupProgress, sampled: GrowingGroup, on_begin: Callable[[], None]
    ) -> None:
        """Adds the completions of a batch that is over, because something failed after it."""
        on_begin()
        progress.generators[seat.worker_id] = None
        for completion in seat.completions:
            progress.finish(completion)
            sampled.add(completion)
            self._await_completions(-1)

    async def _sample_on_one(
        self,
        group: SettledGroup,
        progress: GroupProgress,
        sampled: GrowingGroup,
        sampling: SamplingParams,
        request_id: str,
        on_begin: Callable[[], None],
        seat: Seat | None,
    ) -> None:
        async with self._generators.room(len(progress.missing), priority=group.order_number, seat=seat) as binding:
            worker_id = binding.member.record.worker_id
            with trace.span(names.GROUP_SAMPLE, parent=group.traceparent, group_id=group.group_id, worker_id=worker_id):
                for number in itertools.count():
                    call_id = f"{request_id}/call-{number}" if number else request_id
                    async with self._controls.sampling_for_training():
                        await self._receive(group, progress, sampled, sampling, call_id, binding, on_begin)
                        break
                    if seat is not None:
                        raise WorkFailed(binding.member.name, "an evaluation came first", is_loss=False)
                    # Another call goes on from what this one has delivered.
                    binding.resize(0)
                    await self._controls.unpaused()
            sampled.complete()
        if seat is not None:
            seat.keep(worker_id, sampled.completions)

    async def _receive(
        self,
        group: SettledGroup,
        progress: GroupProgress,
        sampled: GrowingGroup,
        sampling: SamplingParams,
        request_id: str,
        binding: Binding,
        on_begin: Callable[[], None],
    ) -> None:
        """Adds completions as they arrive from one call."""
        completions = self._generators.sample(
            binding,
            group.prompt,
            progress,
            sampling,
            request_id=request_id,
            timeout_s=self._config.coordinator.sampling_timeout_s,
            with_text=self.with_text,
            on_begin=on_begin,
            report_every_tokens=self.report_every_tokens,
            resumable=partial(resumable_tokens, stop_strings=sampling.stop_strings, decode=self._decode),
        )
        async with contextlib.aclosing(completions):
            async for completion in completions:
                sampled.add(completion)
                self._await_completions(-1)

    def _decode(self, token_ids: list[int]) -> str:
        """Returns tokens as the text in which an engine looks for stop strings."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    async def with_text(self, completion: Completion) -> Completion:
        """Returns the completion with its text, without special tokens."""
        text = await asyncio.to_thread(self._tokenizer.decode, completion.token_ids.tolist(), skip_special_tokens=True)
        return replace(completion, text=str(text))
