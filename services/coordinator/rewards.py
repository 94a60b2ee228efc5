"""Scoring groups: which reward service is asked, and what happens when it goes away."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from services.coordinator.events import EventLog
from services.coordinator.fleet import Fleet, Member
from services.coordinator.occupancy import Occupancy
from services.coordinator.tasks import Signal, first_error
from services.coordinator.verifier_code import VerifierCode
from shoal.config import RunConfig
from shoal.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unavailable
from shoal.rollout import Completion, GroundTruth, Prompt, Score
from shoal.v1 import reward_pb2
from shoal.wire import completion_to_wire, ground_truth_to_wire, prompt_to_wire, score_from_wire

LIST_TIMEOUT_S = 30.0
_UNAVAILABLE = "UNAVAILABLE HERE: "
LABELS_TIMEOUT_S = 600.0
"""For one request of `_LABELS_AT_ONCE` labels; a label of `math` takes some milliseconds, any other far less."""
_LABELS_AT_ONCE, _BYTES_AT_ONCE = 512, 1 << 20
_LABEL_REQUESTS = 4
"""Under way at once, so that all processes of all services have work."""


class GrowingGroup:
    """The completions of one group, as they arrive; may be read several times from the start."""

    def __init__(self) -> None:
        self.completions: list[Completion] = []
        self._complete = False
        self._changed = Signal()

    def add(self, completion: Completion) -> None:
        self.completions.append(completion)
        self._changed.notify()

    def complete(self) -> None:
        """Says that no more completions come."""
        self._complete = True
        self._changed.notify()

    async def read(self) -> AsyncIterator[Completion]:
        """Yields all completions, waiting for those to come."""
        position = 0
        while True:
            changed = self._changed.next
            while position < len(self.completions):
                yield self.completions[position]
                position += 1
            if self._complete:
                return
            await changed.wait()


class Rewards:
    """The reward services of a run as one."""

    def __init__(self, fleet: Fleet, events: EventLog, config: RunConfig) -> None:
        self._fleet = fleet
        self._events = events
        self._wait_timeout_s = config.coordinator.worker_timeout_s
        self._code = VerifierCode(events, settle_s=config.reward.timeout_s)
        self.occupancy = Occupancy()

    async def check_verifiers(self, prompts: Iterable[Prompt]) -> None:
        """Raises `InvalidArgument` when prompts name a verifier that the reward service does not have, or that cannot
        work there."""
        member = await self._choose()
        response = await member.stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=LIST_TIMEOUT_S)
        listed = {verifier.name: verifier.description for verifier in response.verifiers}
        for prompt in prompts:
            for name in sorted({truth.verifier for truth in prompt.ground_truths}):
                if name not in listed:
                    raise InvalidArgument(
                        f"prompt {prompt.prompt_id} names the verifier {name!r}, which the reward service does not"
                        f" have; known: {', '.join(sorted(listed))}"
                    )
                if listed[name].startswith(_UNAVAILABLE):
                    why = listed[name].removeprefix(_UNAVAILABLE).partition("\n\n")[0]
                    raise InvalidArgument(
                        f"prompt {prompt.prompt_id} names the verifier {name!r}, which cannot work at {member.name}: "
                        f"{why}"
                    )

    async def label_problems(self, truths: Sequence[GroundTruth]) -> list[str]:
        """Why nothing can be judged by each label; empty where something can.

        Raises `FailedPrecondition` with the reason UNIMPLEMENTED where the service does not check labels.
        """
        problems = [""] * len(truths)
        free = asyncio.Semaphore(_LABEL_REQUESTS)
        async with first_error(asyncio.TaskGroup()) as tasks:
            for first, request in _label_requests(truths):
                await free.acquire()
                checking = tasks.create_task(self._check_labels(first, request, problems))
                checking.add_done_callback(lambda _: free.release())
        return problems

    async def _check_labels(self, first: int, request: reward_pb2.CheckLabelsRequest, problems: list[str]) -> None:
        while True:
            member = await self._choose()
            member.outstanding += 1
            try:
                response = await member.stub.CheckLabels(request, timeout=LABELS_TIMEOUT_S)
            except DeadlineExceeded as error:
                raise FailedPrecondition(
                    f'labels were not looked at in time: {error.message}; data.malformed_labels = "keep" goes without'
                ) from None
            except (Unavailable, Internal, FailedPrecondition) as error:
                if error.reason == "UNIMPLEMENTED":
                    raise
                await self._fleet.lost(member, error)
            else:
                for problem in response.problems:
                    problems[first + problem.index] = problem.reason
                return
            finally:
                member.outstanding -= 1

    async def score(self, group_id: str, prompt: Prompt, group: GrowingGroup, *, timeout_s: float) -> Sequence[Score]:
        """Scores each completion of a group as it arrives; returns the scores by sample index.

        Scoring has no side effects, so a service that goes away is replaced by another, which gets the completions
        that have no score yet; and so does one that was too busy, after the time that it asked for. Raises
        `FailedPrecondition` when there is none for too long, `InvalidArgument` for what cannot be sent.
        """
        scores: dict[int, Score] = {}
        while True:
            member = await self._choose()
            try:
                await self._score_at(member, prompt, group, timeout_s, scores)
                return [scores[index] for index in sorted(scores)]
            except ResourceExhausted as error:
                if error.retry_after_s is None:  # A completion larger than a message may be: no time makes it fit.
                    raise InvalidArgument(f"{group_id} has a completion that cannot be sent: {error.message}") from None
                # Not before it said, and not all who were refused at the same moment.
                await asyncio.sleep(error.retry_after_s * random.uniform(1.0, 1.2))
            except (Unavailable, Internal, FailedPrecondition) as error:
                # FailedPrecondition: a new process at the old one's address, which is not configured yet.
                await self._fleet.lost(member, error)
                self._events.add(
                    "scoring_repeated",
                    f"{group_id} is scored again elsewhere: {member.name} went away",
                    group_id=group_id,
                    worker_id=member.record.worker_id,
                )

    async def _choose(self) -> Member:
        deadline = asyncio.get_running_loop().time() + self._wait_timeout_s
        while not (members := self._fleet.rewards):
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise FailedPrecondition(
                    f"no reward service for coordinator.worker_timeout_s ({self._wait_timeout_s:.0f} s)",
                    reason="NO_REWARD",
                )
            await self._fleet.wait_for_change(min(remaining, 1.0))
        return min(members, key=lambda candidate: (candidate.outstanding, random.random()))

    async def _score_at(
        self, member: Member, prompt: Prompt, group: GrowingGroup, timeout_s: float, scores: dict[int, Score]
    ) -> None:
        """Adds the scores that are missing, each as it comes."""
        num_tokens: dict[int, int] = {}
        """Of the completions that are sent."""
        is_open = True

        async def requests() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
            yield reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))
            async for completion in group.read():
                if not is_open:  # The call has ended, and nobody reads this any more.
                    return
                if completion.sample_index in scores:
                    continue
                num_tokens[completion.sample_index] = completion.num_tokens
                self.occupancy.out()
                yield reward_pb2.ScoreGroupRequest(completion=completion_to_wire(completion))

        member.outstanding += 1
        try:
            async for response in member.stub.ScoreGroup(requests(), timeout=timeout_s):
                score = score_from_wire(response.score)
                self._code.seen(member.name, prompt.prompt_id, score)
                if score.sample_index in num_tokens and score.sample_index not in scores:
                    self.occupancy.back(num_tokens=num_tokens[score.sample_index])
                    scores[score.sample_index] = score
        finally:
            is_open = False
            member.outstanding -= 1
            self.occupancy.back(len(num_tokens.keys() - scores.keys()))
        if missing := {completion.sample_index for completion in group.completions} - scores.keys():
            raise Internal(f"{member.name} did not score samples {sorted(missing)} of {prompt.prompt_id}")


def _label_requests(truths: Sequence[GroundTruth]) -> Iterator[tuple[int, reward_pb2.CheckLabelsRequest]]:
    """All labels in order, each message with the place of its first; well below gRPC's limit unless one label is
    not."""
    request, first, num_bytes = reward_pb2.CheckLabelsRequest(), 0, 0
    for place, truth in enumerate(truths):
        message = ground_truth_to_wire(truth)
        is_full = place - first >= _LABELS_AT_ONCE or num_bytes + message.ByteSize() > _BYTES_AT_ONCE
        if is_full and place > first:
            yield first, request
            request, first, num_bytes = reward_pb2.CheckLabelsRequest(), place, 0
        request.ground_truths.append(message)
        num_bytes += message.ByteSize()
    if request.ground_truths:
        yield first, request
