"""Changes of the code of custom verifiers during a run, as events."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.coordinator.store.events import EventLog
from shoal.data.rows import row_name
from shoal.scores import Score

_SHOWN_DIGITS = 12


@dataclass
class _Current:
    digest: str
    since: float
    before: str = ""


class VerifierCode:
    """Follows the code digests in scores, for each reward service and verifier."""

    def __init__(self, events: EventLog, *, settle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`settle_s`: time after a change in which scores of the former code are no change back."""
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
        code = f"code {digest[:_SHOWN_DIGITS]} of {verifier}" + (f", not {before[:_SHOWN_DIGITS]}" if before else "")
        self._events.add(
            "verifier_code",
            f"{service} scores with {code}, from a completion of {row_name(prompt_id)} on",
            verifier=verifier,
            code_digest=digest,
            code_digest_before=before,
            prompt_id=prompt_id,
        )
