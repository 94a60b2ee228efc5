"""The log of what verifiers of yours raised."""

import logging

_log = logging.getLogger(__name__)
_MOST = 100


class Tracebacks:
    """Writes each whole traceback once: thousands of completions may raise the same."""

    def __init__(self) -> None:
        self._written: set[tuple[str, str]] = set()

    def write(self, verifier: str, traceback: str) -> None:
        """Writes it, unless it was, or a hundred others were."""
        if (verifier, traceback) not in self._written and len(self._written) < _MOST:
            self._written.add((verifier, traceback))
            _log.error("the verifier %s raised\n%s", verifier, traceback)
