"""One group's way from the issue of its prompt to its scores."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.coordinator.events import EventLog
from services.coordinator.generators import GeneratorLost, Generators
from services.coordinator.ledger import Ledger
from services.coordinator.outage import OutageGuard
from services.coordinator.rewards import GrowingGroup, Rewards
from services.coordinator.tasks import first_error
from services.coordinator.token_reward import TokenReward, token_rewards
from shoal.config import RunConfig
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.grpo.seeds import completion_seed
from shoal.rollout import Completion, FinishReason, Prompt, SamplingParams, Score
from shoal.telemetry import names, trace

_log = logging.getLogger(__name__)

NUM_TIMED_ISSUES = 2
"""Times that a group is issued when it runs into its deadline. One endless completion must not hold the line."""


@dataclass(frozen=True)
class SettledGroup:
    """A group that is through: scored, or dropped for a reason."""

    order_number: int
    group_id: str
    prompt: Prompt
    traceparent: str
    completions: tuple[Completion, ...] = ()
    scores: tuple[Score, ...] = ()
    greedy_score: Score | None = None
    """Of the prompt's greedy completion, where `advantage.baseline` asks for one."""
    step_rewards: tuple[tuple[TokenReward, ...], ...] = ()
    """Of each completion, where `advantage.step_rewards` asks for them."""
    drop_reason: str = ""
    position: int = 0
    """Of the prompt in the data's endless order."""


class Sampler:
    """Issues prompts to generators and has what comes back scored."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        attempt: int,
        *,
        generators: Generators,
        rewards: Rewards,
        ledger: Ledger,
        events: EventLog,
        tokenizer: Any,
        stop_token_ids: Sequence[int],
        policy_version: Callable[[], int],
        pause: Callable[[str], Awaitable[None]],
        unpaused: Callable[[], Awaitable[None]],
    ) -> None:
        """`policy_version` gives the published version; `unpaused` returns when the run is not paused."""
        self._config = config
        self._run_id = run_id
        self._attempt = attempt
        self._generators = generators
        self._rewards = rewards
        self._ledger = ledger
        self._events = events
        self._tokenizer = tokenizer
        self._policy_version = policy_version
        self._outage = OutageGuard(config.reward, events, pause)
        self.unpaused = unpaused
        self.num_pauses = 0
        self.sampling = SamplingParams(
            temperature=config.sampling.temperature,
            max_completion_tokens=config.sampling.max_completion_tokens,
            stop_token_ids=tuple(stop_token_ids),
            top_p=config.sampling.top_p,
            top_k=config.sampling.top_k,
            min_p=config.sampling.min_p,
            stop_strings=tuple(config.sampling.stop_strings),
        )

    def run_was_paused(self) -> None:
        """Time in a pause does not count against a group's deadline."""
        self.num_pauses += 1

    async def run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        """Samples and scores one group, on another generator if the first goes away.

        `position` is the prompt's in the data.

        A group that runs into `coordinator.sampling_timeout_s` is issued once more in its place, then dropped.
        """
        with self._outage.group():
            return await self._run_group(order_number, position, prompt)

    async def _run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        group_id = f"group-{order_number:08d}"
        seeds = [
            completion_seed(self._config.run.seed, order_number, index) for index in range(self._config.grpo.group_size)
        ]
        num_issues, num_timed_out = 0, 0
        detail = ""
        while True:
            num_issues += 1
            with trace.span(names.GROUP_ISSUE, parent="", run_id=self._run_id, group_id=group_id) as span:
                traceparent, trace_id = trace.traceparent_of(span), trace.trace_id_of(span)
            settled = SettledGroup(order_number, group_id, prompt, traceparent, position=position)
            await self._ledger.issued(
                order_number, position, group_id, prompt, trace_id, self._policy_version(), detail
            )
            num_pauses = self.num_pauses
            request_id = f"{self._run_id}/{self._attempt}/{order_number}/{num_issues}"
            try:
                async with asyncio.timeout(self._config.coordinator.sampling_timeout_s):
                    return await self._sample_and_score(settled, seeds, request_id)
            except GeneratorLost as error:
                detail = str(error)
            except (TimeoutError, DeadlineExceeded):
                timeout_s = self._config.coordinator.sampling_timeout_s
                detail = f"not done within coordinator.sampling_timeout_s ({timeout_s:g} s)"
                if num_pauses == self.num_pauses:
                    num_timed_out += 1
                if num_timed_out == NUM_TIMED_ISSUES:
                    return await self._drop(settled, "timeout", detail)
            except InvalidArgument as error:
                return await self._drop(settled, "refused", error.message)
            await self.unpaused()
            self._events.add(
                "group_reissued", f"{group_id} is issued again: {detail}", group_id=group_id, order_number=order_number
            )

    async def _sample_and_score(self, settled: SettledGroup, seeds: Sequence[int], request_id: str) -> SettledGroup:
        """Scores each completion while its siblings are still sampled."""
        group, greedy = GrowingGroup(), GrowingGroup()
        greedy_scoring: asyncio.Task[Sequence[Score]] | None = None
        async with first_error(asyncio.TaskGroup()) as tasks:
            scoring = self._start(tasks, settled, group, self._sample_group(settled, group, seeds, request_id))
            if self._config.advantage.baseline == "greedy":
                # ReMax's baseline: a sample besides, which is scored and not trained on.
                seed = completion_seed(self._config.run.seed, settled.order_number, len(seeds))
                sampling = replace(self.sampling, temperature=0.0)
                asking = self._sample(settled, greedy, [seed], sampling, f"{request_id}/greedy")
                greedy_scoring = self._start(tasks, settled, greedy, asking)
        completions = tuple(sorted(group.completions, key=lambda completion: completion.sample_index))
        scores = tuple(scoring.result())
        greedy_score = greedy_scoring.result()[0] if greedy_scoring else None
        steps: tuple[tuple[TokenReward, ...], ...] = ()
        if self._config.advantage.step_rewards:
            steps = await asyncio.to_thread(self._step_rewards, settled.prompt, completions, scores)
        await self._ledger.scored(settled.order_number, scores, self._policy_version(), greedy_score)
        return replace(settled, completions=completions, scores=scores, greedy_score=greedy_score, step_rewards=steps)

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
        self, tasks: asyncio.TaskGroup, settled: SettledGroup, group: GrowingGroup, sampling: Coroutine[Any, Any, Any]
    ) -> "asyncio.Task[Sequence[Score]]":
        """Has completions sampled and, as they come, scored; returns the scoring."""
        # Also when it failed: a stream to a reward service must not wait for ever.
        tasks.create_task(sampling).add_done_callback(lambda _: group.complete())
        return tasks.create_task(self._score(settled, group))

    async def _sample_group(
        self, settled: SettledGroup, group: GrowingGroup, seeds: Sequence[int], request_id: str
    ) -> None:
        worker_id = await self._sample(settled, group, seeds, self.sampling, request_id)
        await self._ledger.sampled(settled.order_number, group.completions, self._policy_version(), worker_id)

    async def _sample(
        self,
        settled: SettledGroup,
        group: GrowingGroup,
        seeds: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
    ) -> str:
        """Adds completions to `group` as they come; returns the generator's worker id."""
        member = await self._generators.choose(len(seeds))
        with trace.span(
            names.GROUP_SAMPLE,
            parent=settled.traceparent,
            group_id=settled.group_id,
            worker_id=member.record.worker_id,
        ):
            async for completion in self._generators.sample(
                member,
                settled.prompt,
                seeds,
                sampling,
                request_id=request_id,
                timeout_s=self._config.coordinator.sampling_timeout_s,
            ):
                if completion.finish_reason is FinishReason.ABORT:
                    raise GeneratorLost(member, "it aborted the completion")
                group.add(await self.with_text(completion))
        group.complete()
        return member.record.worker_id

    async def _score(self, settled: SettledGroup, group: GrowingGroup) -> Sequence[Score]:
        with trace.span(names.GROUP_SCORE, parent=settled.traceparent, group_id=settled.group_id):
            timeout_s = self._config.coordinator.sampling_timeout_s
            num_times = 0
            while True:
                num_over = self._outage.num_over
                scores = await self._rewards.score(settled.group_id, settled.prompt, group, timeout_s=timeout_s)
                if not await self._outage.holds(scores, num_over=num_over, again=num_times > 0):
                    return scores
                num_times += 1
                await self.unpaused()
                self._outage.close()

    async def with_text(self, completion: Completion) -> Completion:
        """The completion with its text, special tokens left out."""
        text = await asyncio.to_thread(self._tokenizer.decode, completion.token_ids.tolist(), skip_special_tokens=True)
        return replace(completion, text=str(text))

    async def _drop(self, settled: SettledGroup, reason: str, detail: str) -> SettledGroup:
        await self._ledger.dropped(settled.order_number, reason, self._policy_version())
        self._events.add(
            "group_dropped",
            f"{settled.group_id} is dropped: {detail}",
            group_id=settled.group_id,
            order_number=settled.order_number,
            reason=reason,
        )
        return replace(settled, drop_reason=reason)
