"""The sampler of a rollout group, from the issue of its prompt to its scores."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import add
from typing import Any, NamedTuple

from services.coordinator.rollout.circuit_breaker import CircuitBreaker, environment_verdicts
from services.coordinator.rollout.completions import GroupRequest
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import DropReason, SettledGroup, TokenReward, token_rewards, turn_rewards
from services.coordinator.rollout.rollout_parts import RolloutParts
from services.coordinator.rollout.rounds import Rounds
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.store.events import EventLog
from services.coordinator.store.ledger import Ledger
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.lost_work import LostWork, WorkFailed
from shoal.concurrency import first_error
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.grpo.seeds import completion_seed
from shoal.rollout import Completion, Prompt
from shoal.scores import Score, ScoreOutcome
from shoal.telemetry import names, trace

MAX_TIMEOUTS = 2
"""Number of missed deadlines after which a group is dropped, so that an endless completion does not block the order."""


class _Delivered(NamedTuple):
    """The delivered parts of a group and of its greedy completion."""

    sampled: GroupProgress
    greedy: GroupProgress
    """The greedy completion; empty without the greedy baseline."""

    @property
    def furthest(self) -> int:
        """The progress of all completions, in tokens. A completion that kills engines makes no progress."""
        return min((one.num_tokens_of_shortest for one in self if one.missing), default=0)


class _PlayedInOutage(Exception):
    """Raised if episodes of a group FAILED in a past outage of their environment."""


class Sampler:
    """Samples groups on generators, and sends the completions of the groups to reward services."""

    def __init__(
        self,
        parts: RolloutParts,
        run_id: str,
        version: CurrentVersion,
        gate: SamplingGate,
        *,
        breaker: CircuitBreaker,
        ledger: Ledger,
        events: EventLog,
    ) -> None:
        self._parts = parts
        self._run_id = run_id
        self._version = version
        self._gate = gate
        self._breaker = breaker
        self._ledger = ledger
        self._events = events
        self._rounds = Rounds(parts.config(), run_id, version)
        self._played_in_outage: set[int] = set()
        """Order numbers of groups whose episodes are played again after an outage."""

    def begin_round(self, order_numbers: Sequence[int]) -> None:
        """Announces groups that a deterministic run issues together, and so samples together."""
        self._rounds.begin(order_numbers)

    async def run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        """Samples and scores one group, on another generator if the first is lost.

        `position` is the prompt's index in the data's order. A group that exceeds `coordinator.sampling_timeout_s` is
        issued again once under its order number, then dropped; time in a pause does not count. If sampling or scoring
        fails, the group is issued again after a pause and continues from the delivered tokens; it is dropped after
        `coordinator.max_group_losses` failures at the same tokens. Episodes that FAILED in an outage of their
        environment are played again when the run is resumed.
        """
        with self._breaker.group():
            self._rounds.enter(order_number, plays_episodes=prompt.environment is not None)
            try:
                return await self._run_group(order_number, position, prompt)
            finally:
                self._rounds.end(order_number)
                self._played_in_outage.discard(order_number)

    async def _run_group(self, order_number: int, position: int, prompt: Prompt) -> SettledGroup:
        group_id = f"group-{order_number:08d}"
        delivered = self._nothing_delivered(order_number)
        timeout_s = self._parts.completions.timeout_s
        num_timeouts = 0
        lost = LostWork(self._parts.config().coordinator.max_group_losses, self._parts.pause.unpaused)
        detail = ""
        async for num_issues in lost:
            if num_issues:
                self._reissued(order_number, group_id, detail, delivered)
            # First, so that the version of the issue is the one that samples; this wait has no deadline.
            with await self._gate.enter() as passage:
                if not self._may_keep(delivered):
                    delivered = self._nothing_delivered(order_number)
                with trace.span(names.GROUP_ISSUE, parent="", run_id=self._run_id, group_id=group_id) as span:
                    traceparent, trace_id = trace.traceparent_of(span), trace.trace_id_of(span)
                group = SettledGroup(order_number, group_id, prompt, traceparent, position=position)
                await self._ledger.issued(
                    order_number, position, group_id, prompt, trace_id, self._version.policy_version, detail
                )
                num_pauses = self._parts.pause.num_pauses
                request_id = f"{self._run_id}/{self._version.weights.attempt}/{order_number}/{num_issues + 1}"
                try:
                    async with asyncio.timeout(None) as deadline:  # It counts from the first token.
                        begin = partial(_restart, deadline, timeout_s)
                        return await self._sample_and_score(group, delivered, request_id, passage, lost, begin)
                except WorkFailed as error:
                    detail = str(error)
                    if lost.count(error, delivered.furthest):
                        return await self._drop(group, DropReason.LOST, detail)
                except (TimeoutError, DeadlineExceeded):
                    detail = f"the group did not end within coordinator.sampling_timeout_s ({timeout_s:g} s)"
                    if num_pauses == self._parts.pause.num_pauses:
                        num_timeouts += 1
                    if num_timeouts == MAX_TIMEOUTS:
                        return await self._drop(group, DropReason.TIMEOUT, detail)
                except _PlayedInOutage as error:
                    detail = str(error)
                except InvalidArgument as error:
                    return await self._drop(group, DropReason.REFUSED, error.message)
        raise AssertionError("unreachable")

    def _reissued(self, order_number: int, group_id: str, detail: str, delivered: "_Delivered") -> None:
        self._events.add(
            "group_reissued",
            f"{group_id} is issued again: {detail}",
            group_id=group_id,
            order_number=order_number,
            num_kept_completions=len(delivered.sampled.completions),
            num_kept_tokens=delivered.sampled.num_prefix_tokens,
        )

    def _nothing_delivered(self, order_number: int) -> "_Delivered":
        config = self._parts.config()
        *seeds, greedy = (
            completion_seed(config.run.seed, order_number, index) for index in range(config.grpo.group_size + 1)
        )
        has_greedy = config.advantage.baseline == "greedy"
        return _Delivered(GroupProgress(seeds), GroupProgress([greedy] * has_greedy))

    def _may_keep(self, delivered: "_Delivered") -> bool:
        """Whether a group that is issued again continues from the delivered tokens instead of starting over."""
        if not self._parts.completions.report_every_tokens:
            return False
        # Without updates in flight, no group has tokens of two versions.
        version = self._version.weights
        return self._parts.config().weights.inflight_updates or all(one.is_of(version) for one in delivered)

    async def _sample_and_score(
        self,
        group: SettledGroup,
        delivered: "_Delivered",
        request_id: str,
        passage: ExitStack,
        lost: LostWork,
        on_begin: Callable[[], None],
    ) -> SettledGroup:
        """Samples a group, and scores each completion as it arrives. The passage ends with the last sample."""
        greedy_scoring: asyncio.Task[Sequence[Score]] | None = None
        async with first_error(asyncio.TaskGroup()) as tasks:
            request = GroupRequest(
                group,
                delivered.sampled,
                self._parts.sampling,
                request_id,
                on_begin,
                self._rounds.seat(group.order_number, is_greedy=False),
                self._rounds.turns(group.order_number, is_greedy=False),
            )
            sampling, scoring = self._start(tasks, request, lost)
            samplings = [sampling]
            if self._parts.config().advantage.baseline == "greedy":
                # ReMax's baseline: an additional sample, which is scored but not trained on.
                greedy = replace(
                    request,
                    progress=delivered.greedy,
                    sampling=replace(self._parts.sampling, temperature=0.0, return_support=False),
                    request_id=f"{request_id}/greedy",
                    seat=self._rounds.seat(group.order_number, is_greedy=True),
                    turns=self._rounds.turns(group.order_number, is_greedy=True),
                    is_greedy=True,
                )
                sampling, greedy_scoring = self._start(tasks, greedy, lost)
                samplings.append(sampling)
            asyncio.gather(*samplings, return_exceptions=True).add_done_callback(lambda _: passage.close())
        completions = tuple(delivered.sampled.in_order)
        scores = tuple(scoring.result())
        greedy_score = greedy_scoring.result()[0] if greedy_scoring else None
        steps: tuple[tuple[TokenReward, ...], ...] = ()
        if self._parts.config().advantage.step_rewards:
            steps = await asyncio.to_thread(self._step_rewards, group.prompt, completions, scores)
        if self._parts.config().episodes.turn_rewards == "tokens" and group.prompt.environment is not None:
            turns = tuple(map(turn_rewards, completions))
            steps = tuple(map(add, steps, turns)) if steps else turns
        await self._ledger.scored(group.order_number, scores, self._version.policy_version, greedy_score)
        return replace(group, completions=completions, scores=scores, greedy_score=greedy_score, step_rewards=steps)

    def _step_rewards(
        self, prompt: Prompt, completions: Sequence[Completion], scores: Sequence[Score]
    ) -> tuple[tuple[TokenReward, ...], ...]:
        return tuple(
            token_rewards(prompt, completion, score, self._parts.completions.text_of)
            for completion, score in zip(completions, scores, strict=True)
        )

    def _start(
        self, tasks: asyncio.TaskGroup, request: GroupRequest, lost: LostWork
    ) -> "tuple[asyncio.Task[Any], asyncio.Task[Sequence[Score]]]":
        """Starts the sampling, and the scoring of completions as they arrive; returns both tasks."""
        task = tasks.create_task(self._sample(request))
        # The group is complete even if sampling failed: a stream to a reward service must not wait forever.
        task.add_done_callback(lambda _: request.sampled.complete())
        return task, tasks.create_task(self._score(request, lost))

    async def _sample(self, request: GroupRequest) -> None:
        """Adds the missing completions of a group as they arrive, and records them, except greedy ones, at the end."""
        if request.group.prompt.environment is None:
            await self._parts.completions.sample(request)
        else:
            await self._parts.episodes.sample(request, self._parts.completions.await_completions)
        request.sampled.complete()
        if not request.is_greedy:
            order_number, progress, version = request.group.order_number, request.progress, self._version.policy_version
            await self._ledger.sampled(order_number, progress.in_order, version, ", ".join(progress.generators))

    async def _score(self, request: GroupRequest, lost: LostWork) -> Sequence[Score]:
        """Scores completions as they arrive, except completions with a known score."""
        group, sampled, known = request.group, request.sampled, request.progress.scores
        with trace.span(names.GROUP_SCORE, parent=group.traceparent, group_id=group.group_id):
            if group.prompt.environment is None:
                await sampled.begun()  # A service waits for completions, not for their generator.
            else:
                num_outages = self._breaker.num_outages
                await sampled.completed()  # Nor does it wait for episodes, which may exceed a call's limit.
                await self._check_environment(request, group.prompt.environment.environment, num_outages)
            timeout_s = self._parts.completions.timeout_s
            is_retry = False
            while True:
                num_outages = self._breaker.num_outages
                scores = await self._parts.rewards.score(
                    group.group_id, group.prompt, sampled, known, timeout_s=timeout_s, lost=lost
                )
                if not await self._breaker.rejects(scores, num_outages=num_outages, is_retry=is_retry):
                    return scores
                await self._show_rejected(request, scores)
                known.clear()
                is_retry = True
                await self._parts.pause.unpaused()
                self._breaker.close()

    async def _check_environment(self, request: GroupRequest, environment: str, num_outages: int) -> None:
        """Raises `_PlayedInOutage`, once the run continues, if the episodes that FAILED have to be played again."""
        order_number, progress = request.group.order_number, request.progress
        verdicts = environment_verdicts(environment, progress.in_order)
        is_retry = order_number in self._played_in_outage
        if not await self._breaker.rejects(verdicts, num_outages=num_outages, is_retry=is_retry):
            return
        await self._show_rejected(request, verdicts)
        await self._parts.pause.unpaused()
        self._breaker.close()
        self._played_in_outage.add(order_number)
        broken = [verdict.sample_index for verdict in verdicts if verdict.outcome is ScoreOutcome.FAILED]
        for index in broken:
            del progress.completions[index]
        raise _PlayedInOutage(f"{len(broken)} of its episodes FAILED in an outage of the environment {environment}")

    async def _show_rejected(self, request: GroupRequest, scores: Sequence[Score]) -> None:
        """Records in the ledger why a group waits for the end of an outage."""
        if not request.is_greedy:
            await self._ledger.rejected(request.group.order_number, scores)

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
    if not deadline.expired():
        deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)
