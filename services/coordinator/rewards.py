"""Scoring groups: which reward service is asked, and what happens when it goes away."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence

from services.coordinator.events import EventLog
from services.coordinator.fleet import Fleet, Member
from services.coordinator.occupancy import Occupancy
from services.coordinator.tasks import Signal
from shoal.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unavailable
from shoal.rollout import Completion, Prompt, Score
from shoal.v1 import reward_pb2
from shoal.wire import completion_to_wire, prompt_to_wire, score_from_wire

LIST_TIMEOUT_S = 30.0


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

    def __init__(self, fleet: Fleet, events: EventLog, *, wait_timeout_s: float) -> None:
        """`wait_timeout_s`: longest wait for a reward service."""
        self._fleet = fleet
        self._events = events
        self._wait_timeout_s = wait_timeout_s
        self.occupancy = Occupancy()

    async def check_verifiers(self, prompts: Iterable[Prompt]) -> None:
        """Raises `InvalidArgument` when prompts name a verifier that the reward service does not have."""
        member = await self._choose()
        response = await member.stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=LIST_TIMEOUT_S)
        known = {verifier.name for verifier in response.verifiers}
        for prompt in prompts:
            if unknown := sorted({truth.verifier for truth in prompt.ground_truths} - known):
                raise InvalidArgument(
                    f"prompt {prompt.prompt_id} names the verifier {unknown[0]!r}, which the reward service does not"
                    f" have; known: {', '.join(sorted(known))} (reasoning_gym needs the extra shoal[tasks] there)"
                )

    async def score(self, group_id: str, prompt: Prompt, group: GrowingGroup, *, timeout_s: float) -> Sequence[Score]:
        """Scores each completion of a group as it arrives; returns the scores by sample index.

        Scoring has no side effects, so a service that goes away is replaced by another that starts from the first
        completion. Raises `FailedPrecondition` when there is none for too long.
        """
        while True:
            member = await self._choose()
            try:
                return await self._score_at(member, prompt, group, timeout_s)
            except ResourceExhausted as error:
                await asyncio.sleep(error.retry_after_s or 1.0)
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

    async def _score_at(self, member: Member, prompt: Prompt, group: GrowingGroup, timeout_s: float) -> Sequence[Score]:
        num_tokens: dict[int, int] = {}
        """Of the completions that are sent."""
        is_open = True

        async def requests() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
            yield reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))
            async for completion in group.read():
                if not is_open:  # The call has ended, and nobody reads this any more.
                    return
                num_tokens[completion.sample_index] = completion.num_tokens
                self.occupancy.out()
                yield reward_pb2.ScoreGroupRequest(completion=completion_to_wire(completion))

        member.outstanding += 1
        scores: dict[int, Score] = {}
        try:
            async for response in member.stub.ScoreGroup(requests(), timeout=timeout_s):
                score = score_from_wire(response.score)
                if score.sample_index in num_tokens and score.sample_index not in scores:
                    self.occupancy.back(num_tokens=num_tokens[score.sample_index])
                scores[score.sample_index] = score
        finally:
            is_open = False
            member.outstanding -= 1
            self.occupancy.back(len(num_tokens.keys() - scores.keys()))
        if missing := {completion.sample_index for completion in group.completions} - scores.keys():
            raise Internal(f"{member.name} did not score samples {sorted(missing)} of {prompt.prompt_id}")
        return [scores[index] for index in sorted(scores)]
