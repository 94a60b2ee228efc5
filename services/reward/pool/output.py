"""The printed output of verifiers, as lines of the log with the verifier's name."""

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

MARK = b"\0verifier "
"""The beginning of the line with which a process names the verifier of the output after it. It is in the output itself,
so that each line belongs to the right verifier, whenever it is read."""
_MAX_LINE_BYTES = 2000
_MAX_TRACEBACKS = 100
_BURST_LINES, _LINES_PER_S = 1000, 20.0


class LineBudget:
    """Bounds the lines in the log: a verifier may print for each of thousands of completions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_left = float(_BURST_LINES)
        self._since = clock()
        self.num_left_out = 0
        """Number of refused lines since the last accepted line."""

    def take(self) -> bool:
        """Returns whether one more line may be written."""
        now = self._clock()
        self._num_left = min(_BURST_LINES, self._num_left + (now - self._since) * _LINES_PER_S)
        self._since = now
        if self._num_left < 1:
            self.num_left_out += 1
            return False
        self._num_left -= 1
        return True


class Tracebacks:
    """Logs each traceback once, and at most a hundred: thousands of completions may raise the same."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def add(self, verifier: str, traceback: str) -> None:
        """Logs a traceback of a verifier, unless it is known or there are too many."""
        if (verifier, traceback) not in self._logged and len(self._logged) < _MAX_TRACEBACKS:
            self._logged.add((verifier, traceback))
            _log.error("the verifier %s raised\n%s", verifier, traceback)


class VerifierOutput:
    """The output of one process, standard output and standard error, as it arrives."""

    def __init__(self, budget: LineBudget, verifier: str = "") -> None:
        """The output belongs to `verifier` until it names another one."""
        self._budget = budget
        self._verifier = verifier
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes data, and logs the complete lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take_line(line)
        if len(self._rest) > _MAX_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """Logs the beginning of a line that will not be completed."""
        self._take_line(self._rest)
        self._rest = b""

    def _take_line(self, line: bytes) -> None:
        text, mark, name = line.partition(MARK)
        if text.strip() and self._budget.take():
            if self._budget.num_left_out:
                _log.warning("%d lines that verifiers printed are left out", self._budget.num_left_out)
                self._budget.num_left_out = 0
            shown = text[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
            _log.info("%s: %s", self._verifier or "a verifier process", shown, extra={"verifier": self._verifier})
        if mark:
            self._verifier = name.decode("utf-8", "replace")
