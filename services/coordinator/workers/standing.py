"""A generator's record as a receiver of weights: failed loads, growing pauses between them, quarantine."""

from dataclasses import dataclass

FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0


@dataclass
class Standing:
    """The loads that a generator has failed in a row.

    Times are those of the event loop's clock, in seconds.
    """

    num_failures: int = 0
    retry_at: float = 0.0
    """Time before which no weights are published to it."""
    is_quarantined: bool = False
    """Whether weights are published to it no more. Only another registration ends that: it makes a new member."""
    is_in_doubt: bool = False
    """Whether it must load weights again before it serves, whatever it has: the canary shows that its engine works."""

    def load_failed(self, now: float, *, max_failures: int) -> float:
        """Counts a failed load. Returns the seconds until the next try; infinite if there is none."""
        self.num_failures += 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (self.num_failures - 1), MAX_PAUSE_S)
        if self.num_failures >= max_failures:
            self.is_quarantined = True
            pause_s = float("inf")
        self.retry_at = now + pause_s
        return pause_s

    def loaded(self) -> None:
        """Ends the row of failures."""
        self.num_failures, self.retry_at, self.is_in_doubt = 0, 0.0, False

    def may_try(self, now: float) -> bool:
        """Returns whether weights may be published to it now."""
        return not self.is_quarantined and now >= self.retry_at
