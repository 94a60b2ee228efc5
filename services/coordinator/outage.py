"""When rewards fail for a reason of their own: the run waits, instead of training on what is left."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from services.coordinator.events import EventLog
from shoal.config.services import RewardConfig
from shoal.rollout import Score, ScoreOutcome


class OutageGuard:
    """A circuit breaker: opens when too many of the latest completions FAILED, and pauses the run.

    Groups with a failure that come back while it is open are scored again once the run has been resumed.
    """

    def __init__(self, config: RewardConfig, events: EventLog, pause: Callable[[str], Awaitable[None]]) -> None:
        self._most = config.max_failed_share
        self._latest: deque[bool] = deque(maxlen=config.outage_window)
        self._events = events
        self._pause = pause
        self._is_open = False

    async def holds(self, scores: Sequence[Score]) -> bool:
        """Whether a group's scores are not to be used. Pauses the run when they are what opens it."""
        failures = [score for score in scores if score.outcome is ScoreOutcome.FAILED]
        if self._is_open:
            return bool(failures)
        self._latest.extend(score.outcome is ScoreOutcome.FAILED for score in scores)
        share = sum(self._latest) / self._latest.maxlen if self._latest.maxlen else 0.0
        if not failures or share <= self._most:
            return False
        self._is_open = True
        details = sorted({part.detail for score in failures for part in score.verifier_scores if part.detail})
        message = (
            f"{share:.0%} of the last {self._latest.maxlen} completions could not be scored"
            f" ({details[0] if details else 'no reason was given'}): the run is paused; mend the reward service, then:"
            " shoal run resume"
        )
        self._events.add("reward_outage", message, failed_share=share)
        await self._pause(message)
        return True

    def close(self) -> None:
        """The run goes on; what failed before counts no more."""
        self._is_open = False
        self._latest.clear()
