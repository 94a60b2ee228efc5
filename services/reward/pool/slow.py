"""Reports of slow custom verifiers for the log and the status, while they give no other sign."""

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

STAGES_S = (5.0, 30.0, 120.0, 600.0)
"""Times on one completion that are reported."""
_QUIET_S = 60.0
"""Time without slow completions after which a verifier is no longer reported."""


class SlowVerifiers:
    """The verifiers that were slow lately."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`timeout_s` is `reward.timeout_s`."""
        self._timeout_s = timeout_s
        self._clock = clock
        self._slow: dict[str, tuple[float, float]] = {}
        """The longest reached stage, and the time of the last reached stage, by verifier."""

    def report(self, verifier: str, stage_s: float) -> None:
        """Records that the judging of a completion has reached a stage of `STAGES_S`."""
        now = self._clock()
        stage, since = self._slow.get(verifier, (0.0, now))
        if now > since + _QUIET_S:
            stage = 0.0
        if stage_s > stage:
            _log.warning("%s", self._text(verifier, stage_s), extra={"verifier": verifier})
        self._slow[verifier] = (max(stage, stage_s), now)

    @property
    def notice(self) -> str:
        """A message for people. It changes when a longer stage is reached, and is empty when all is quiet again."""
        now = self._clock()
        return "; ".join(
            self._text(verifier, stage)
            for verifier, (stage, since) in sorted(self._slow.items())
            if now <= since + _QUIET_S
        )

    def _text(self, verifier: str, stage_s: float) -> str:
        return (
            f"the verifier {verifier} has been judging one completion for more than {stage_s:.0f} s; after "
            f"reward.timeout_s ({self._timeout_s:g} s) the completion is FAILED"
        )
