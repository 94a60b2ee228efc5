"""The verifiers by name."""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.reward.verdict import Verdict
from services.reward.verifiers import exact_string, gsm8k, math, reasoning_gym
from services.reward.verifiers.ifeval import verify as ifeval


def _nothing_to_load() -> None:
    pass


@dataclass(frozen=True)
class Verifier:
    """How completions are judged under one name."""

    verify: Callable[[str, Any], Verdict]
    """Completion and label -> verdict. Raises `Unscorable`; whatever else it raises means that it broke."""
    load: Callable[[], None] = _nothing_to_load
    """Imports what `verify` needs. Called once in each process, outside any deadline of a completion."""
    module: str = ""
    """A package that it needs and that is an extra of its own."""

    @property
    def description(self) -> str:
        """What it reads, what it returns, and in which range."""
        return inspect.getdoc(self.verify) or ""


_ALL = {
    "exact_string": Verifier(exact_string.verify),
    "gsm8k": Verifier(gsm8k.verify),
    "ifeval": Verifier(ifeval.verify, ifeval.load, module="punkt"),
    "ifeval_old": Verifier(ifeval.verify_old, ifeval.load, module="punkt"),
    "ifeval_old_strict": Verifier(ifeval.verify_old_strict, ifeval.load, module="punkt"),
    "ifeval_strict": Verifier(ifeval.verify_strict, ifeval.load, module="punkt"),
    "math": Verifier(math.verify, math.load),
    "reasoning_gym": Verifier(reasoning_gym.verify, reasoning_gym.load, module="reasoning_gym"),
}
VERIFIERS = {
    name: verifier
    for name, verifier in _ALL.items()
    if not verifier.module or importlib.util.find_spec(verifier.module) is not None
}
"""Those that can work with what is installed."""
