"""When a verifier fails for a reason of its own: the run waits, instead of training on what is left."""

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from services.coordinator.events import EventLog
from services.coordinator.tasks import Signal
from shoal.config.services import RewardConfig
from shoal.rollout import Score, ScoreOutcome


class OutageGuard:
    """A circuit breaker: opens when a verifier FAILED on too many of its latest completions, and pauses the run.

    Groups with a failure that come back while it is open are scored again once the run has been resumed. So that the
    first groups of an outage are not lost before there are enough failures to tell, a group of which a verifier
    judged nothing is held until others have shown whether that was the group's fault: until the verifier has judged
    something, or the breaker opens, which it also does when nothing but such groups is left.
    """

    def __init__(self, config: RewardConfig, events: EventLog, pause: Callable[[str], Awaitable[None]]) -> None:
        self._most = config.max_failed_share
        self._window = config.outage_window
        self._events = events
        self._pause = pause
        self._failed: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=self._window))
        """By verifier: whether it FAILED on each of its latest completions."""
        self._num_judged: Counter[str] = Counter()
        """By verifier: completions on which it did not fail."""
        self._held: list[frozenset[str]] = []
        """Of each group that is held, the verifiers that judged nothing of it."""
        self._num_groups = 0
        self._changed = Signal()
        self._is_open = False

    @contextmanager
    def group(self) -> Iterator[None]:
        """A group is under way, from its issue until it is settled."""
        self._num_groups += 1
        try:
            yield
        finally:
            self._num_groups -= 1
            self._changed.notify()

    async def holds(self, scores: Sequence[Score], *, again: bool = False) -> bool:
        """Whether a group's scores are not to be used. Pauses the run when they are what opens it.

        `again`: the group was scored before, and is not held any more for what is its own fault.
        """
        failures = [part for score in scores for part in score.verifier_scores if part.outcome is ScoreOutcome.FAILED]
        if self._is_open:
            return bool(failures)
        self._count(scores)
        for part in failures:
            if sum(self._failed[part.verifier]) > self._most * self._window:
                await self._open(part.verifier, part.detail)
                return True
        silent = _silent(scores)
        if again or not silent or self._most >= 1:
            return False
        return await self._wait(silent, failures[0].detail)

    def close(self) -> None:
        """The run goes on; what failed before counts no more."""
        self._is_open = False
        self._failed.clear()

    def _count(self, scores: Sequence[Score]) -> None:
        for score in scores:
            for part in score.verifier_scores:
                has_failed = part.outcome is ScoreOutcome.FAILED
                self._failed[part.verifier].append(has_failed)
                self._num_judged[part.verifier] += not has_failed
        self._changed.notify()

    async def _wait(self, silent: frozenset[str], detail: str) -> bool:
        """Holds a group until it is known whether it is to be scored again."""
        judged_before = {verifier: self._num_judged[verifier] for verifier in silent}
        self._held.append(silent)
        self._changed.notify()
        try:
            while True:
                changed = self._changed.next
                if self._is_open:
                    return True
                if all(self._num_judged[verifier] > judged_before[verifier] for verifier in silent):
                    return False
                if len(self._held) >= self._num_groups:  # None is left that could tell.
                    shared = [name for name in silent if sum(name in group for group in self._held) > 1]
                    if not shared:
                        return False
                    await self._open(min(shared), detail)
                    return True
                await changed.wait()
        finally:
            self._held.remove(silent)
            self._changed.notify()

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


def _silent(scores: Sequence[Score]) -> frozenset[str]:
    """The verifiers that FAILED on every completion of a group. One completion says nothing."""
    parts = [part for score in scores for part in score.verifier_scores]
    judged = {part.verifier for part in parts if part.outcome is not ScoreOutcome.FAILED}
    counts = Counter(part.verifier for part in parts)
    return frozenset(name for name, count in counts.items() if count > 1 and name not in judged)
