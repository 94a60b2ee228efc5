"""The order in which the pool judges completions."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.process.frames import Message
from shoal.scores import ScoreOutcome, VerifierScore

_LONG_S = 0.25
"""A verifier is slow if its completions take longer than this on average."""
_SHARED_FOR_S = 60.0
"""Time for which a process is kept for a quick verifier after its last completion came."""
# Weight of a verifier's newest completion in the mean of how long they take.
_SMOOTHING = 0.05


@dataclass(eq=False)
class Job:
    """A completion for one verifier."""

    verifier: str
    completion: str
    label: Any
    done: asyncio.Future[VerifierScore]
    token_ids: Sequence[int] = ()
    asked: float = 0.0
    """Time at which it came, by the event loop's clock."""
    started: float = 0.0
    """Time at which a process last took it."""
    attempts: int = 0
    position: int = 0
    """Its number in the order of arrival."""
    arguments: Callable[[frozenset[str]], Message] | None = None
    """For a custom verifier, in place of completion, label and tokens: returns the values of the named arguments."""
    code_digest: str = ""
    """Digest of a custom verifier's code."""

    def fail(self, why: str) -> None:
        """Sets the outcome FAILED, unless there is an outcome."""
        if not self.done.done():
            took = asyncio.get_running_loop().time() - self.started if self.started else 0.0
            self.done.set_result(
                VerifierScore(
                    self.verifier, ScoreOutcome.FAILED, detail=why, duration_s=took, code_digest=self.code_digest
                )
            )


class JobQueue:
    """The completions that wait, oldest first, except that one process is kept from slow verifiers while quick ones are
    in use.

    Otherwise as many hanging completions as there are processes would hold up every other verifier until the deadline.
    """

    def __init__(self, num_processes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_processes = num_processes
        self._clock = clock
        self._waiting: dict[str, deque[Job]] = {}
        self._asked: dict[str, float] = {}
        """By verifier: the time at which its last completion came."""
        self._mean_s: dict[str, float] = {}
        self._positions = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, job: Job) -> None:
        """Adds a new completion."""
        job.position = next(self._positions)
        self._asked[job.verifier] = self._clock()
        self._waiting.setdefault(job.verifier, deque()).append(job)

    def put_back(self, job: Job) -> None:
        """Returns a completion whose process died to its former position."""
        self._waiting.setdefault(job.verifier, deque()).appendleft(job)

    def take(self, running: Collection[str]) -> Job | None:
        """Returns the next, given the verifiers that processes run now; None if none waits or may start."""
        refuses_slow = self._refuses_slow(running)
        chosen: deque[Job] | None = None
        for verifier, jobs in self._waiting.items():
            while jobs and jobs[0].done.done():  # Its caller has gone.
                jobs.popleft()
            if not jobs or (refuses_slow and self._is_slow(verifier)):
                continue
            if chosen is None or jobs[0].position < chosen[0].position:
                chosen = jobs
        return None if chosen is None else chosen.popleft()

    def took(self, verifier: str, duration_s: float) -> None:
        """Records how long a completion took, whether it was judged or not."""
        mean_s = self._mean_s.get(verifier, duration_s)
        self._mean_s[verifier] = mean_s + _SMOOTHING * (duration_s - mean_s)

    def fail_all(self, why: str) -> None:
        """Fails all that wait."""
        for jobs in self._waiting.values():
            while jobs:
                jobs.popleft().fail(why)

    def _is_slow(self, verifier: str) -> bool:
        return self._mean_s.get(verifier, 0.0) > _LONG_S

    def _refuses_slow(self, running: Collection[str]) -> bool:
        num_slow = sum(map(self._is_slow, running))
        if self._num_processes == 1 or num_slow < self._num_processes - 1:
            return False
        since = self._clock() - _SHARED_FOR_S
        return any(asked >= since and not self._is_slow(verifier) for verifier, asked in self._asked.items())
