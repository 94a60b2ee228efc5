"""The pool of a run's reward services. The pool scores groups, checks labels, and replaces a lost service."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from services.coordinator.store.events import EventLog
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.group_progress import GrowingGroup
from services.coordinator.workers.lost_work import LostWork, WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.utilization import Utilization
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.data.conversation import unknown_verifier
from shoal.data.rows import row_name
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import Score
from shoal.v1 import reward_pb2
from shoal.wire import completion_to_wire, ground_truth_to_wire, prompt_to_wire, score_from_wire

AnswerT = TypeVar("AnswerT")

LIST_TIMEOUT_S = 30.0
RELOAD_TIMEOUT_S = 150.0
"""Timeout of a call that imports code. A service allows each custom verifier two minutes for its import."""
LABELS_TIMEOUT_S = 600.0
"""Timeout of one request with labels. A label of `math` takes some milliseconds, any other label far less."""
_MAX_REQUEST_LABELS, _MAX_REQUEST_BYTES = 512, 1 << 20
_MAX_LABEL_REQUESTS = 4
"""Number of requests in flight, so that all processes of all services have work."""
_SHOWN_DIGITS = 12


class RewardPool:
    """All reward services of a run."""

    def __init__(
        self,
        fleet: Fleet,
        events: EventLog,
        config: RunConfig,
        running_s: Callable[[], float],
    ) -> None:
        """`running_s` is the clock of `utilization`."""
        self._fleet = fleet
        self._events = events
        self._wait_timeout_s = config.coordinator.worker_timeout_s
        self._code = VerifierCode(events, settle_s=config.reward.timeout_s)
        self.utilization = Utilization(running_s)

    async def check_verifiers(self, prompts: Iterable[Prompt]) -> None:
        """Raises `InvalidArgument` when prompts name a verifier that the reward service does not have, or that cannot
        work there."""
        request = reward_pb2.ListVerifiersRequest()
        member, response = await self.ask(lambda member: member.stub.ListVerifiers(request, timeout=LIST_TIMEOUT_S))
        why_unavailable = {verifier.name: verifier.unavailable for verifier in response.verifiers}
        for prompt in prompts:
            for name in sorted({truth.verifier for truth in prompt.ground_truths}):
                if name not in why_unavailable:
                    raise InvalidArgument(
                        f"{row_name(prompt.prompt_id)} names a verifier that the reward service does not have: "
                        f"{unknown_verifier(name, why_unavailable)}"
                    )
                if reason := why_unavailable[name]:
                    raise InvalidArgument(
                        f"{row_name(prompt.prompt_id)} names the verifier {name!r}, which cannot work at "
                        f"{member.name}: {reason}"
                    )

    async def ask(self, call: Callable[[Member], Awaitable[AnswerT]]) -> tuple[Member, AnswerT]:
        """Makes a call to one service after the other until one answers; returns that service, and its answer.

        Raises the errors of the call, and of `choose`.
        """
        while True:
            member = await self.choose()
            try:
                return member, await call(member)
            except (Aborted, Unavailable, DeadlineExceeded, FailedPrecondition) as error:
                if error.reason == ErrorReason.UNIMPLEMENTED:
                    raise
                await self.leave(member, error)

    async def reload_verifiers(self, *, keeps_tools: bool = False) -> None:
        """Makes every reward service reload the code of custom verifiers and environments.

        Raises `InvalidArgument` if the code cannot be used; with `keeps_tools`, also if an environment would lose a
        tool. Skips services that do not have this call or do not answer.
        """

        async def reload(member: Member) -> None:
            request = reward_pb2.ReloadVerifiersRequest(keeps_tools=keeps_tools)
            with contextlib.suppress(Aborted, Unavailable, DeadlineExceeded, FailedPrecondition):
                await member.stub.ReloadVerifiers(request, timeout=RELOAD_TIMEOUT_S)

        async with first_error(asyncio.TaskGroup()) as tasks:
            for member in self._fleet.rewards:
                tasks.create_task(reload(member))

    async def label_problems(self, truths: Sequence[GroundTruth]) -> list[str]:
        """Returns what is wrong with each label; an empty text for a usable label. Raises `FailedPrecondition` with the
        reason UNIMPLEMENTED if the service cannot check labels."""
        problems = [""] * len(truths)
        free = asyncio.Semaphore(_MAX_LABEL_REQUESTS)
        async with first_error(asyncio.TaskGroup()) as tasks:
            for first, request in _label_requests(truths):
                await free.acquire()
                checking = tasks.create_task(self._check_labels(first, request, problems))
                checking.add_done_callback(lambda _: free.release())
        return problems

    async def _check_labels(self, first: int, request: reward_pb2.CheckLabelsRequest, problems: list[str]) -> None:
        while True:
            member = await self.choose()
            member.outstanding += 1
            try:
                response = await member.stub.CheckLabels(request, timeout=LABELS_TIMEOUT_S)
            except DeadlineExceeded as error:
                raise FailedPrecondition(
                    f'labels were not checked in time: {error.message}; set data.malformed_labels = "keep" to skip this'
                ) from None
            except (Aborted, Unavailable, FailedPrecondition) as error:
                if error.reason == ErrorReason.UNIMPLEMENTED:
                    raise
                await self.leave(member, error)
            else:
                for problem in response.problems:
                    problems[first + problem.index] = problem.reason
                return
            finally:
                member.outstanding -= 1

    async def score(
        self,
        group_id: str,
        prompt: Prompt,
        group: GrowingGroup,
        scores: dict[int, Score],
        *,
        timeout_s: float,
        lost: LostWork,
    ) -> Sequence[Score]:
        """Scores each completion of a group as it arrives; returns the scores by sample index.

        `scores` has the known scores by sample index; new scores are added to it. Scoring has no side effects. So if a
        service is lost or leaves, another service gets the completions without a score. If a service is too busy, a
        service gets them after the requested delay. After an error inside a service, which `lost` counts, and a pause,
        completions are scored again. Raises `WorkFailed` after too many of these errors, `FailedPrecondition` if no
        service is there within coordinator.worker_timeout_s, `InvalidArgument` for a completion that cannot be sent.
        """
        while True:
            member = await self.choose()
            try:
                await self._score_at(member, prompt, group, timeout_s, scores)
                return [scores[index] for index in sorted(scores)]
            except ResourceExhausted as error:
                if error.retry_after_s is None:  # A completion exceeds the size of a message; a delay does not help.
                    raise InvalidArgument(f"{group_id} has a completion that cannot be sent: {error.message}") from None
                # Not earlier than asked, and spread out: many calls may have been refused at the same moment.
                await asyncio.sleep(error.retry_after_s * random.uniform(1.0, 1.2))
            except Internal as error:
                if lost.count(WorkFailed(member.name, error.message)):
                    raise WorkFailed(member.name, error.message, is_loss=False) from error
                self._log_repeat(group_id, member, error)
                await lost.pause()
            except (Aborted, Unavailable, FailedPrecondition) as error:
                await self.leave(member, error)
                self._log_repeat(group_id, member, error)

    async def leave(self, member: Member, error: ShoalError) -> None:
        """Takes a service out of use after it ended a call or the call broke off."""
        if isinstance(error, Aborted):  # It was told to end, and hands back what it has not begun.
            self._fleet.leaves(member)
        elif isinstance(error, Unavailable | DeadlineExceeded):
            self._fleet.out_of_reach(member, error)
        else:  # It comes from a new process at the same address that is not configured yet.
            await self._fleet.report_lost(member, error)

    def _log_repeat(self, group_id: str, member: Member, error: ShoalError) -> None:
        self._events.add(
            "scoring_repeated",
            f"{group_id} is scored again: {member.name}: {error.message}",
            group_id=group_id,
            worker_id=member.record.worker_id,
        )

    async def choose(self) -> Member:
        """Returns the service with the least work. Raises `FailedPrecondition` (NO_REWARD) if there is none in time."""
        deadline = asyncio.get_running_loop().time() + self._wait_timeout_s
        while not (members := [member for member in self._fleet.rewards if member.serving]):
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise FailedPrecondition(
                    f"no reward service was available for {self._wait_timeout_s:.0f} s (coordinator.worker_timeout_s); "
                    "start one, or see the logs of the reward services",
                    reason=ErrorReason.NO_REWARD,
                )
            await self._fleet.changed.wait(min(remaining, 1.0))
        return min(members, key=lambda candidate: (candidate.outstanding, random.random()))

    async def _score_at(
        self, member: Member, prompt: Prompt, group: GrowingGroup, timeout_s: float, scores: dict[int, Score]
    ) -> None:
        """Adds each missing score as it arrives."""
        num_tokens: dict[int, int] = {}
        """The lengths of the sent completions in tokens."""
        is_open = True

        async def requests() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
            yield reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))
            async for completion in group.read():
                if not is_open:  # The call has ended: no reader is left.
                    return
                if completion.sample_index in scores:
                    continue
                num_tokens[completion.sample_index] = completion.num_tokens
                self.utilization.out()
                sent = replace(completion, support=None)
                message = completion_to_wire(sent, with_words=False, with_prompts=False)
                yield reward_pb2.ScoreGroupRequest(completion=message)

        member.outstanding += 1
        try:
            async for response in member.stub.ScoreGroup(requests(), timeout=timeout_s):
                score = score_from_wire(response.score)
                self._code.observe(member.name, prompt.prompt_id, score)
                if score.sample_index in num_tokens and score.sample_index not in scores:
                    self.utilization.back(num_tokens=num_tokens[score.sample_index])
                    scores[score.sample_index] = score
        finally:
            is_open = False
            member.outstanding -= 1
            self.utilization.back(len(num_tokens.keys() - scores.keys()))
        if missing := {completion.sample_index for completion in group.completions} - scores.keys():
            raise Internal(f"{member.name} did not score samples {sorted(missing)} of {prompt.prompt_id}")


def _label_requests(truths: Sequence[GroundTruth]) -> Iterator[tuple[int, reward_pb2.CheckLabelsRequest]]:
    """Yields all labels in order, as requests well below gRPC's limit, with the index of their first label."""
    request, first, num_bytes = reward_pb2.CheckLabelsRequest(), 0, 0
    for index, truth in enumerate(truths):
        message = ground_truth_to_wire(truth)
        is_full = index - first >= _MAX_REQUEST_LABELS or num_bytes + message.ByteSize() > _MAX_REQUEST_BYTES
        if is_full and index > first:
            yield first, request
            request, first, num_bytes = reward_pb2.CheckLabelsRequest(), index, 0
        request.ground_truths.append(message)
        num_bytes += message.ByteSize()
    if request.ground_truths:
        yield first, request


@dataclass
class _Current:
    digest: str
    since: float
    before: str = ""


class VerifierCode:
    """Follows the code digests in scores, for each reward service and verifier."""

    def __init__(self, events: EventLog, *, settle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """For `settle_s` seconds after a change, late scores from the old code do not count as another change."""
        self._events = events
        self._settle_s = settle_s
        self._clock = clock
        self._current: dict[tuple[str, str], _Current] = {}

    def observe(self, service: str, prompt_id: str, score: Score) -> None:
        """Adds an event if a score comes from other code than the scores before it."""
        for part in score.verifier_scores:
            if part.code_digest:
                self._observe(service, prompt_id, part.verifier, part.code_digest)

    def _observe(self, service: str, prompt_id: str, verifier: str, digest: str) -> None:
        known = self._current.get((service, verifier))
        if known is not None:
            is_late = digest == known.before and self._clock() < known.since + self._settle_s
            if digest == known.digest or is_late:
                return
        before = known.digest if known else ""
        self._current[service, verifier] = _Current(digest, self._clock(), before)
        code = f"code {digest[:_SHOWN_DIGITS]} of {verifier}" + (f" (was {before[:_SHOWN_DIGITS]})" if before else "")
        self._events.add(
            "verifier_code",
            f"{service} scores with {code}, from a completion of {row_name(prompt_id)} on",
            verifier=verifier,
            code_digest=digest,
            code_digest_before=before,
            prompt_id=prompt_id,
        )
