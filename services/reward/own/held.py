"""The verifiers of yours that one process holds."""

from collections.abc import Mapping
from typing import Any

import psutil

from services.reward.own.code import Code, Unusable
from services.reward.own.loading import Loaded, load, told
from services.reward.process_limits import MEMORY_LIMIT_BYTES
from services.reward.verdict import Broken, Verdict

_MOST_BYTES = MEMORY_LIMIT_BYTES // 2


class HeldVerifiers:
    """Loads functions when they are first called, and calls them."""

    def __init__(self) -> None:
        self._codes: dict[str, Code] = {}
        self._loaded: dict[str, Loaded | Unusable] = {}
        self._process = psutil.Process()
        self.spent = ""
        """Why this process should be replaced: a function leaves things behind, and the next one would suffer."""

    def __contains__(self, name: str) -> bool:
        return name in self._codes

    def hold(self, code: Code) -> None:
        """Takes a verifier, or another version of one, from the next call on."""
        self._codes[code.name] = code
        self._loaded.pop(code.name, None)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def load(self, name: str) -> None:
        """Imports the function. What goes wrong is said when it is called."""
        try:
            self._loaded[name] = load(self._codes[name])
        except Unusable as error:
            self._loaded[name] = error

    def digest(self, name: str) -> str:
        """Of the code that is called."""
        loaded = self._loaded[name]
        return loaded.digest if isinstance(loaded, Loaded) else self._codes[name].digest

    def judge(self, name: str, given: Mapping[str, Any]) -> Verdict:
        """Calls the function. Raises `Unscorable`, `Broken`, and whatever the function raises."""
        loaded = self._loaded[name]
        if isinstance(loaded, Unusable):
            raise Broken(str(loaded))
        try:
            return loaded.judge(given)
        except MemoryError:
            self.spent = f"{name} ran out of memory"
            raise
        finally:
            self._look_for_leaks(name)

    def _look_for_leaks(self, name: str) -> None:
        try:
            if (used := self._process.memory_info().rss) > _MOST_BYTES:
                self.spent = f"it has {used >> 20} MiB after {name}"
        except OSError as error:  # It cannot even open the file that says so.
            self.spent = f"{error.strerror} after {name}"

    def told(self, name: str, error: BaseException) -> str:
        """An error in a line, with the place in the function's file."""
        loaded = self._loaded[name]
        return told(error, loaded.file if isinstance(loaded, Loaded) else "")
