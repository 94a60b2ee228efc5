"""The state of the network: how long messages take, which calls break, who cannot reach whom."""

import random
from dataclasses import dataclass, field
from enum import Enum

from tests.simulation.virtual_time import Process


class Break(Enum):
    REQUEST = "before the server gets it"
    MIDDLE = "while the server works"
    ANSWER = "when the server has done its work"


@dataclass
class Weather:
    """Decides about each message and each call; the scenario changes it as time goes on."""

    rng: random.Random
    break_share: float = 0.0
    """Of calls."""
    slow_share: float = 0.0
    """Of messages."""
    slow_s: float = 2.0
    _healed_at: dict[frozenset[str], float] = field(default_factory=dict)
    """By the names of two processes, the time until which no message passes between them."""

    def latency_s(self) -> float:
        if self.rng.random() < self.slow_share:
            return self.rng.random() * self.slow_s
        return 0.0002 + 0.004 * self.rng.random()

    def breaks(self) -> Break | None:
        if self.rng.random() >= self.break_share:
            return None
        return self.rng.choice(list(Break))

    def part(self, one: Process, other: Process, until: float) -> None:
        """Lets no message pass between two processes until a time; TCP delivers them then."""
        self._healed_at[frozenset((one.name, other.name))] = until

    def passes_at(self, one: Process | None, other: Process | None, now: float) -> float:
        """Returns the time at which a message that leaves now has passed."""
        names = frozenset(process.name for process in (one, other) if process is not None)
        return max(now, self._healed_at.get(names, 0.0)) + self.latency_s()
