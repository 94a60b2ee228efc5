"""The circuit breaker, which pauses the run when a verifier or environment fails, instead of training on the rest."""

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from services.coordinator.store.events import EventLog
from shoal.concurrency import Signal
from shoal.config.tables.reward import RewardConfig
from shoal.rollout import Completion
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.visible_text import visible

_ENVIRONMENT = "environments."
"""Prefix of the names of environments, which tells them from the names of verifiers."""
_REMEDIES = {
    "verifier": (
        "fix the verifier, or the server that it asks",
        "the run reloads custom code, and failed completions are scored again",
    ),
    "environment": (
        "fix the environment, or the reward services that it runs in",
        "the run reloads the environment's code, and failed episodes are played again",
    ),
}


def environment_verdicts(environment: str, completions: Sequence[Completion]) -> list[Score]:
    """Returns each episode as a score of its environment. Leaves out episodes that took too long: they show nothing."""
    return [
        Score(
            completion.sample_index,
            episode.outcome,
            0.0,
            (VerifierScore(_ENVIRONMENT + environment, episode.outcome, detail=episode.detail),),
        )
        for completion in completions
        if (episode := completion.episode) is not None
        and not (episode.is_truncated and episode.outcome is ScoreOutcome.FAILED)
    ]


@dataclass(eq=False)
class _SuspectGroup:
    """A waiting group with failures: by verifier, the number of completions that FAILED, and of all completions."""

    num_failed: Counter[str]
    num_asked: Counter[str]


class CircuitBreaker:
    """Opens when a verifier FAILED on too many of its latest completions, and pauses the run.

    While the breaker is open, groups with a failure are rejected: they are scored again once the run is resumed. At the
    beginning of an outage, there are too few failures to recognize it. So a group with a failure waits until the group
    itself is known to be at fault: until the verifier has judged all completions of another group, or has been asked
    for a whole window of completions without opening the breaker. When all groups in flight wait, the breaker opens if
    the verifier FAILED on more than `max_failed_share` of the completions of its groups with a failure, and there are
    at least two such groups.

    After a resume, the verifier is not trusted until it has judged all completions of one group. Until then, a group
    that was scored again waits like any other, and one group is enough to reopen the breaker. So no group is dropped if
    the verifier still fails.
    """

    def __init__(
        self, config: RewardConfig, events: EventLog, pause: Callable[[str], Awaitable[None]], *, resume_command: str
    ) -> None:
        """`pause` pauses the run for the given reason, and `resume_command` resumes it."""
        self._max_failed_share = config.max_failed_share
        self._window = config.outage_window
        self._events = events
        self._pause = pause
        self._resume_command = resume_command
        self._failed: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=self._window))
        """Whether each verifier FAILED on each of its latest completions, by verifier."""
        self._num_seen: Counter[str] = Counter()
        """Completions that each verifier was asked to judge, by verifier."""
        self._num_clean: Counter[str] = Counter()
        """Groups in which each verifier judged every completion, by verifier."""
        self._untrusted: set[str] = set()
        """Verifiers that opened the breaker and have since then not judged a whole group."""
        self._suspects: list[_SuspectGroup] = []
        self._num_groups = 0
        self._changed = Signal()
        self._is_open = False
        self.num_outages = 0
        """Number of past outages."""

    @contextmanager
    def group(self) -> Iterator[None]:
        """Counts a group as in flight, from the issue of the group until it is settled."""
        self._num_groups += 1
        try:
            yield
        finally:
            self._num_groups -= 1
            self._changed.notify()

    async def rejects(self, scores: Sequence[Score], *, num_outages: int, is_retry: bool = False) -> bool:
        """Returns whether a group must be scored again. Pauses the run if these scores open the breaker.

        `num_outages` is the number of outages at the time when the group was sent to be scored: failures in a past
        outage are no evidence about the present service. A group that was scored before (`is_retry`) no longer waits
        for others if the verifier is known to work again.
        """
        parts = [part for score in scores for part in score.verifier_scores]
        failures = [part for part in parts if part.outcome is ScoreOutcome.FAILED]
        if self._is_open or num_outages < self.num_outages:
            return bool(failures)
        self._count(parts)
        for part in failures:
            if sum(self._failed[part.verifier]) > self._max_failed_share * self._window:
                await self._open(part.verifier, part.detail)
                return True
        still_broken = next((part for part in failures if part.verifier in self._untrusted), None)
        if still_broken is not None and len(scores) == 1:
            await self._open(still_broken.verifier, still_broken.detail)
            return True
        # A single completion, such as a greedy baseline, is no evidence.
        is_accepted = (is_retry and still_broken is None) or len(scores) == 1
        if is_accepted or not failures or self._max_failed_share >= 1:
            return False
        asked = Counter(part.verifier for part in parts)
        return await self._wait(_SuspectGroup(Counter(part.verifier for part in failures), asked), failures[0].detail)

    def close(self) -> None:
        """Closes the breaker when the run resumes: earlier failures no longer count."""
        if self._is_open:
            self._is_open = False
            self.num_outages += 1
            self._failed.clear()

    def _count(self, parts: Sequence[VerifierScore]) -> None:
        failed = {part.verifier for part in parts if part.outcome is ScoreOutcome.FAILED}
        for part in parts:
            self._failed[part.verifier].append(part.outcome is ScoreOutcome.FAILED)
            self._num_seen[part.verifier] += 1
        clean = {part.verifier for part in parts} - failed
        self._num_clean.update(clean)
        self._untrusted -= clean
        self._changed.notify()

    async def _wait(self, group: _SuspectGroup, detail: str) -> bool:
        """Waits until it is known whether a group must be scored again."""
        verifiers = list(group.num_failed)
        num_clean = {verifier: self._num_clean[verifier] for verifier in verifiers}
        num_seen = {verifier: self._num_seen[verifier] for verifier in verifiers}
        self._suspects.append(group)
        self._changed.notify()
        try:
            while True:
                changed = self._changed.next
                if self._is_open:
                    return True
                if all(
                    self._num_clean[verifier] > num_clean[verifier]
                    or self._num_seen[verifier] >= num_seen[verifier] + self._window
                    for verifier in verifiers
                ):
                    return False
                if len(self._suspects) >= self._num_groups:  # No other group in flight could show it.
                    if not (broken := [verifier for verifier in verifiers if self._is_broken(verifier)]):
                        return False
                    await self._open(min(broken), detail)
                    return True
                await changed.wait()
        finally:
            self._suspects.remove(group)
            self._changed.notify()

    def _is_broken(self, verifier: str) -> bool:
        """Returns whether the verifier is at fault, because the waiting groups have too many failures."""
        groups = [group for group in self._suspects if group.num_failed[verifier]]
        num_failed = sum(group.num_failed[verifier] for group in groups)
        num_asked = sum(group.num_asked[verifier] for group in groups)
        is_enough = len(groups) > 1 or verifier in self._untrusted
        return is_enough and num_failed > self._max_failed_share * num_asked

    async def _open(self, verifier: str, detail: str) -> None:
        self._is_open = True
        latest = self._failed[verifier]
        again = " again" if verifier in self._untrusted else ""
        self._untrusted.add(verifier)
        kind, of_what = (
            ("environment", "episodes") if verifier.startswith(_ENVIRONMENT) else ("verifier", "completions")
        )
        name = verifier.removeprefix(_ENVIRONMENT)
        cure, effect = _REMEDIES[kind]
        message = (
            f"the {kind} {name} failed{again} on {sum(latest)} of its last {len(latest)} {of_what}"
            f" ({visible(detail) or 'it reported no reason'}): the run is paused; {cure}, then run: "
            f"{self._resume_command} ({effect})"
        )
        event = "environment_outage" if kind == "environment" else "reward_outage"
        self._events.add(event, message, failed_share=sum(latest) / len(latest), **{kind: name})
        self._changed.notify()
        await self._pause(message)
