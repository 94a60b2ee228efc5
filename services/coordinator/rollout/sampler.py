"""One rollout group from the issue of its prompt to its scores."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import DropReason, SettledGroup
from services.coordinator.rollout.rounds import Rounds
from services.coordinator.rollout.sampling_gate import Passage, SamplingGate
from services.coordinator.rollout.token_reward import TokenReward, token_rewards
from services.coordinator.store.events import EventLog
from services.coordinator.store.ledger import Ledger
from services.coordinator.workers.batches import Seat
from services.coordinator.workers.claims import Binding
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.losses import Losses, WorkFailed
from services.coordinator.workers.rewards.reward_pool import GrowingGroup, RewardPool
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.grpo.seeds import completion_seed
from shoal.rollout import Completion, FinishReason, Prompt, SamplingParams, Score
from shoal.telemetry import metrics, names, trace

_SAMPLING = metrics.gauge(names.RUN_SAMPLING)

MAX_TIMEOUTS = 2
"""Times that a group may exceed its deadline before it is dropped: one endless completion must not block the order."""


class Sampler:
    """Samples groups on generators, and sends their completions to be scored."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        version: CurrentVersion,
        controls: RunControls,
        gate: SamplingGate,
        *,
        generators: GeneratorPool,
        rewards: RewardPool,
        breaker: CircuitBreaker,
        ledger: Ledger,
        events: EventLog,
        tokenizer: Any,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._config = config
        self._run_id = run_id
        self._version = version
        self._controls = controls
        self._gate = gate
        self._generators = generators
        self._rewards = rewards
        self._breaker = breaker
        self._ledger = ledger
        self._events = events
        self._tokenizer = tokenizer
        self._num_awaited = 0
        self._rounds = Rounds(config, run_id, version)
        self.sampling = SamplingParams(
            temperature=config.sampling.temperature,
            max_completion_tokens=config.sampling.max_completion_tokens,
            stop_token_ids=tuple(stop_token_ids),
            top_p=config.sampling.top_p,
            top_k=config.sampling.top_k,
            min_p=config.sampling.min_p,
            stop_strings=tuple(config.sampling.stop_strings),
            return_support=config.sampling.is_restricted,
        )

    def begin_round(self, order_numbers: Sequence[int]) -> None:
        """Announces groups that are issued together. In a deterministic run they are sampled together."""
        self._rounds.begin(order_numbers)

    async def run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        """Samples and scores one group, on another generator if the first is lost.

        `position` is the prompt's index in the data's order. A group that exceeds `coordinator.sampling_timeout_s` is
        issued once more under its order number, then dropped; time in a pause does not count. One whose sampling or
        scoring fails is issued again after a pause, and dropped after `coordinator.max_group_losses` failures.
        """
        with self._breaker.group():
            try:
                return await self._run_group(order_number, position, prompt)
            finally:
                self._rounds.end(order_number)

    async def _run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        group_id = f"group-{order_number:08d}"
        seeds = [
            completion_seed(self._config.run.seed, order_number, index) for index in range(self._config.grpo.group_size)
        ]
        timeout_s = self._config.coordinator.sampling_timeout_s
        num_issues, num_timeouts = 0, 0
        losses = Losses(self._config.coordinator.max_group_losses)
        detail = ""
        while True:
            num_issues += 1
            # First, so that the version of the issue is the one that samples; this wait has no deadline.
            with await self._gate.enter() as passage:
                with trace.span(names.GROUP_ISSUE, parent="", run_id=self._run_id, group_id=group_id) as span:
                    traceparent, trace_id = trace.traceparent_of(span), trace.trace_id_of(span)
                group = SettledGroup(order_number, group_id, prompt, traceparent, position=position)
                await self._ledger.issued(
                    order_number, position, group_id, prompt, trace_id, self._version.policy_version, detail
                )
                num_pauses = self._controls.num_pauses
                request_id = f"{self._run_id}/{self._version.weights.attempt}/{order_number}/{num_issues}"
                try:
                    async with asyncio.timeout(None) as deadline:  # It counts from the first token.
                        begin = partial(_restart, deadline, timeout_s)
                        return await self._sample_and_score(group, seeds, request_id, passage, losses, begin)
                except WorkFailed as error:
                    detail = str(error)
                    losses.count(error)
                    if losses.are_too_many:
                        return await self._drop(group, DropReason.LOST, detail)
                except (TimeoutError, DeadlineExceeded):
                    detail = f"not done within coordinator.sampling_timeout_s ({timeout_s:g} s)"
                    if num_pauses == self._controls.num_pauses:
                        num_timeouts += 1
                    if num_timeouts == MAX_TIMEOUTS:
                        return await self._drop(group, DropReason.TIMEOUT, detail)
                except InvalidArgument as error:
                    return await self._drop(group, DropReason.REFUSED, error.message)
            await losses.pause()
            await self._controls.unpaused()
            self._events.add(
                "group_reissued", f"{group_id} is issued again: {detail}", group_id=group_id, order_number=order_number
            )

    async def _sample_and_score(
        self,
        group: SettledGroup,
        seeds: Sequence[int],
        request_id: str,
        passage: Passage,
        losses: Losses,
        on_begin: Callable[[], None],
    ) -> SettledGroup:
        """Scores each completion while its siblings are still being sampled. The passage ends with the last sample."""
        sampled, greedy = GrowingGroup(), GrowingGroup()
        greedy_scoring: asyncio.Task[Sequence[Score]] | None = None
        async with first_error(asyncio.TaskGroup()) as tasks:
            sampling, scoring = self._start(
                tasks, group, sampled, self._sample_group(group, sampled, seeds, request_id, on_begin), losses
            )
            samplings = [sampling]
            if self._config.advantage.baseline == "greedy":
                # ReMax's baseline: an additional sample, which is scored and not trained on.
                seed = completion_seed(self._config.run.seed, group.order_number, len(seeds))
                params = replace(self.sampling, temperature=0.0, return_support=False)
                seat = self._rounds.seat(group.order_number, is_greedy=True)
                greedy_sampling = self._sample(group, greedy, [seed], params, f"{request_id}/greedy", on_begin, seat)
                sampling, greedy_scoring = self._start(tasks, group, greedy, greedy_sampling, losses)
                samplings.append(sampling)
            asyncio.gather(*samplings, return_exceptions=True).add_done_callback(lambda _: passage.end())
        completions = tuple(sorted(sampled.completions, key=lambda completion: completion.sample_index))
        scores = tuple(scoring.result())
        greedy_score = greedy_scoring.result()[0] if greedy_scoring else None
        steps: tuple[tuple[TokenReward, ...], ...] = ()
        if self._config.advantage.step_rewards:
            steps = await asyncio.to_thread(self._step_rewards, group.prompt, completions, scores)
        await self._ledger.scored(group.order_number, scores, self._version.policy_version, greedy_score)
        return replace(group, completions=completions, scores=scores, greedy_score=greedy_score, step_rewards=steps)

    def _step_rewards(
        self, prompt: Prompt, completions: Sequence[Completion], scores: Sequence[Score]
    ) -> tuple[tuple[TokenReward, ...], ...]:
        def text_of(token_ids: list[int]) -> str:
            return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

        return tuple(
            token_rewards(prompt, completion, score, text_of)
            for completion, score in zip(completions, scores, strict=True)
        )

    def _start(
        self,
        tasks: asyncio.TaskGroup,
        group: SettledGroup,
        sampled: GrowingGroup,
        sampling: Coroutine[Any, Any, Any],
        losses: Losses,
    ) -> "tuple[asyncio.Task[Any], asyncio.Task[Sequence[Score]]]":
        """Starts sampling, and scoring of the completions as they arrive; returns both."""
        task = tasks.create_task(sampling)
        # The group is complete also when sampling failed: a stream to a reward service must not wait forever.
        task.add_done_callback(lambda _: sampled.complete())
        return task, tasks.create_task(self._score(group, sampled, losses))

    async def _sample_group(
        self,
        group: SettledGroup,
        sampled: GrowingGroup,
        seeds: Sequence[int],
        request_id: str,
        on_begin: Callable[[], None],
    ) -> None:
        seat = self._rounds.seat(group.order_number, is_greedy=False)
        worker_id = await self._sample(group, sampled, seeds, self.sampling, request_id, on_begin, seat)
        await self._ledger.sampled(group.order_number, sampled.completions, self._version.policy_version, worker_id)

    async def _sample(
        self,
        group: SettledGroup,
        sampled: GrowingGroup,
        seeds: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
        on_begin: Callable[[], None],
        seat: Seat | None,
    ) -> str:
        """Adds completions to `sampled` as they arrive; returns the generator's worker id."""
        self._await_completions(len(seeds))
        try:
            if seat is not None and seat.is_sampled:
                return self._take_again(seat, sampled, on_begin)
            return await self._sample_on_one(group, sampled, seeds, sampling, request_id, on_begin, seat)
        finally:
            self._await_completions(len(sampled.completions) - len(seeds))

    def _await_completions(self, change: int) -> None:
        self._num_awaited += change
        _SAMPLING.set(self._num_awaited)

    def _take_again(self, seat: Seat, sampled: GrowingGroup, on_begin: Callable[[], None]) -> str:
        """Adds the completions of a batch that is over, because something failed after it."""
        on_begin()
        for completion in seat.completions:
            sampled.add(completion)
            self._await_completions(-1)
        sampled.complete()
        return seat.worker_id

    async def _sample_on_one(
        self,
        group: SettledGroup,
        sampled: GrowingGroup,
        seeds: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
        on_begin: Callable[[], None],
        seat: Seat | None,
    ) -> str:
        async with self._generators.room(len(seeds), priority=group.order_number, seat=seat) as binding:
            worker_id = binding.member.record.worker_id
            with trace.span(names.GROUP_SAMPLE, parent=group.traceparent, group_id=group.group_id, worker_id=worker_id):
                while True:
                    async with self._controls.sampling_for_training():
                        await self._receive(group, sampled, seeds, sampling, request_id, binding, on_begin)
                        break
                    if seat is not None:
                        raise WorkFailed(binding.member.name, "an evaluation came first", is_loss=False)
                    # The generator has the completions that it finished, and samples the others again.
                    binding.resize(0)
                    await self._controls.unpaused()
            sampled.complete()
        if seat is not None:
            seat.keep(worker_id, sampled.completions)
        return worker_id

    async def _receive(
        self,
        group: SettledGroup,
        sampled: GrowingGroup,
        seeds: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
        binding: Binding,
        on_begin: Callable[[], None],
    ) -> None:
        """Adds the completions that `sampled` does not have as they arrive."""
        completions = self._generators.sample(
            binding,
            group.prompt,
            seeds,
            sampling,
            request_id=request_id,
            timeout_s=self._config.coordinator.sampling_timeout_s,
            on_begin=on_begin,
            known=[completion.sample_index for completion in sampled.completions],
        )
        async with contextlib.aclosing(completions):
            async for completion in completions:
                if completion.finish_reason is FinishReason.ABORT:
                    raise WorkFailed(binding.member.name, "it aborted the completion")
                sampled.add(await self.with_text(completion))
                self._await_completions(-1)

    async def _score(self, group: SettledGroup, sampled: GrowingGroup, losses: Losses) -> Sequence[Score]:
        with trace.span(names.GROUP_SCORE, parent=group.traceparent, group_id=group.group_id):
            await sampled.begun()  # A service waits for completions, not for their generator.
            timeout_s = self._config.coordinator.sampling_timeout_s
            is_retry = False
            while True:
                num_outages = self._breaker.num_outages
                scores = await self._rewards.score(
                    group.group_id, group.prompt, sampled, timeout_s=timeout_s, losses=losses
                )
                if not await self._breaker.rejects(scores, num_outages=num_outages, is_retry=is_retry):
                    return scores
                is_retry = True
                await self._controls.unpaused()
                self._breaker.close()

    async def with_text(self, completion: Completion) -> Completion:
        """Returns the completion with its text, without special tokens."""
        text = await asyncio.to_thread(self._tokenizer.decode, completion.token_ids.tolist(), skip_special_tokens=True)
        return replace(completion, text=str(text))

    async def _drop(self, group: SettledGroup, reason: DropReason, detail: str) -> SettledGroup:
        await self._ledger.dropped(group.order_number, reason, self._version.policy_version)
        self._events.add(
            "group_dropped",
            f"{group.group_id} is dropped: {detail}",
            group_id=group.group_id,
            order_number=group.order_number,
            reason=reason.value,
        )
        return replace(group, drop_reason=reason)


def _restart(deadline: asyncio.Timeout, timeout_s: float) -> None:
    """Lets a deadline count from now."""
    if not deadline.expired():
        deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)
