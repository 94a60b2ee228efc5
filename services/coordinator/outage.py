"""When a verifier fails for a reason of its own: the run waits, instead of training on what is left."""

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from services.coordinator.events import EventLog
from services.coordinator.tasks import Signal
from shoal.config.services import RewardConfig
from shoal.rollout import Score, ScoreOutcome, VerifierScore


@dataclass(eq=False)
class _Held:
    """A group that waits, by each verifier that FAILED on some of it: how many of how many completions."""

    num_failed: Counter[str]
    num_asked: Counter[str]


class OutageGuard:
    """A circuit breaker: opens when a verifier FAILED on too many of its latest completions, and pauses the run.

    Groups with a failure that come back while it is open are scored again once the run has been resumed. So that the
    first groups of an outage are not lost before there are enough failures to tell, a group with a failure is held
    until others have shown whether that was the group's own fault: until the verifier has judged all of another
    group, or as many completions as the share is taken of have come without opening the breaker. When nothing but
    such groups is left, it opens if the verifier FAILED on more than the share of them, and of two at least.
    """

    def __init__(self, config: RewardConfig, events: EventLog, pause: Callable[[str], Awaitable[None]]) -> None:
        self._most = config.max_failed_share
        self._window = config.outage_window
        self._events = events
        self._pause = pause
        self._failed: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=self._window))
        """By verifier: whether it FAILED on each of its latest completions."""
        self._num_seen: Counter[str] = Counter()
        """By verifier: completions that it was asked to judge."""
        self._num_clean: Counter[str] = Counter()
        """By verifier: groups of which it judged everything."""
        self._held: list[_Held] = []
        self._num_groups = 0
        self._changed = Signal()
        self._is_open = False
        self.num_over = 0
        """Outages that are over."""

    @contextmanager
    def group(self) -> Iterator[None]:
        """A group is under way, from its issue until it is settled."""
        self._num_groups += 1
        try:
            yield
        finally:
            self._num_groups -= 1
            self._changed.notify()

    async def holds(self, scores: Sequence[Score], *, num_over: int, again: bool = False) -> bool:
        """Whether a group's scores are not to be used. Pauses the run when they are what opens it.

        `num_over` as it was when the group was sent to be scored: what failed in an outage that is over by now says
        nothing of the service as it is. `again`: the group was scored before, and is not held any more for what is
        its own fault.
        """
        parts = [part for score in scores for part in score.verifier_scores]
        failures = [part for part in parts if part.outcome is ScoreOutcome.FAILED]
        if self._is_open or num_over < self.num_over:
            return bool(failures)
        self._count(parts)
        for part in failures:
            if sum(self._failed[part.verifier]) > self._most * self._window:
                await self._open(part.verifier, part.detail)
                return True
        # One completion, as a greedy baseline, says nothing.
        if again or not failures or len(scores) == 1 or self._most >= 1:
            return False
        asked = Counter(part.verifier for part in parts)
        return await self._wait(_Held(Counter(part.verifier for part in failures), asked), failures[0].detail)

    def close(self) -> None:
        """The run goes on; what failed before counts no more."""
        if self._is_open:
            self._is_open = False
            self.num_over += 1
            self._failed.clear()

    def _count(self, parts: Sequence[VerifierScore]) -> None:
        failed = {part.verifier for part in parts if part.outcome is ScoreOutcome.FAILED}
        for part in parts:
            self._failed[part.verifier].append(part.outcome is ScoreOutcome.FAILED)
            self._num_seen[part.verifier] += 1
        self._num_clean.update({part.verifier for part in parts} - failed)
        self._changed.notify()

    async def _wait(self, group: _Held, detail: str) -> bool:
        """Holds a group until it is known whether it is to be scored again."""
        suspects = list(group.num_failed)
        num_clean = {verifier: self._num_clean[verifier] for verifier in suspects}
        num_seen = {verifier: self._num_seen[verifier] for verifier in suspects}
        self._held.append(group)
        self._changed.notify()
        try:
            while True:
                changed = self._changed.next
                if self._is_open:
                    return True
                if all(
                    self._num_clean[verifier] > num_clean[verifier]
                    or self._num_seen[verifier] >= num_seen[verifier] + self._window
                    for verifier in suspects
                ):
                    return False
                if len(self._held) >= self._num_groups:  # None is left that could tell.
                    if not (broken := [verifier for verifier in suspects if self._is_broken(verifier)]):
                        return False
                    await self._open(min(broken), detail)
                    return True
                await changed.wait()
        finally:
            self._held.remove(group)
            self._changed.notify()

    def _is_broken(self, verifier: str) -> bool:
        """Whether the groups that are held are too many failures for it to be their fault."""
        groups = [group for group in self._held if group.num_failed[verifier]]
        num_failed = sum(group.num_failed[verifier] for group in groups)
        return len(groups) > 1 and num_failed > self._most * sum(group.num_asked[verifier] for group in groups)

    async def _open(self, verifier: str, detail: str) -> None:
        self._is_open = True
        latest = self._failed[verifier]
        message = (
            f"the verifier {verifier} failed on {sum(latest)} of its last {len(latest)} completions"
            f" ({detail or 'it gave no reason'}): the run is paused; mend the reward service, then: shoal run resume"
        )
        self._events.add("reward_outage", message, verifier=verifier, failed_share=sum(latest) / len(latest))
        self._changed.notify()
        await self._pause(message)
