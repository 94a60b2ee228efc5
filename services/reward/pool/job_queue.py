"""The order in which the pool judges completions."""

import asyncio
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.reward.process.frames import Message
from shoal.scores import ScoreOutcome, StepScore, VerifierScore

_LONG_S = 0.25
"""A verifier is slow if its completions take longer than this on average."""
_SHARED_FOR_S = 60.0
"""Time for which a process is reserved for quick verifiers after the last completion for a quick verifier."""
# Weight of a verifier's newest completion in the mean duration.
_SMOOTHING = 0.05
_MIN_SLICE_S, _MAX_SLICE_S = 0.05, 1.0
_SLICE_PER_MEAN = 4.0
_LATE_SHARE = 0.25
"""Share of the processes and of their time for late completions while others wait."""
_MEMORY_S = 60.0
"""Process time after which earlier times count half."""


@dataclass(eq=False)
class Job:
    """A completion for one verifier."""

    verifier: str
    completion: str
    label: Any
    done: asyncio.Future[VerifierScore]
    token_ids: Sequence[int] = ()
    group: str = ""
    """Names the completions of one prompt; empty for a completion that stands alone."""
    can_stop: bool = False
    """Whether a process may stop judging it. It is then judged anew later."""
    asked: float = 0.0
    """Time of its arrival, by the event loop's clock."""
    started: float = 0.0
    """Time at which a process last took it."""
    attempts: int = 0
    position: int = 0
    """Its number in the order of arrival."""
    is_late: bool = False
    """Whether the completion's slice ended before it was judged."""
    was_put_off: bool = False
    """Whether it is judged anew, without a slice."""
    arguments: Callable[[frozenset[str]], Message] | None = None
    """For a custom verifier: returns the values of the named arguments, instead of completion, label and tokens."""
    code_digest: str = ""
    """Digest of a custom verifier's code."""

    def answer(self, message: Message) -> None:
        """Sets the outcome that a process has sent, unless there already is an outcome."""
        if not self.done.done():
            self.done.set_result(
                VerifierScore(
                    verifier=self.verifier,
                    outcome=ScoreOutcome(message["outcome"]),
                    value=message["value"],
                    detail=message["detail"],
                    answer=message["answer"],
                    step_scores=tuple(StepScore(int(end), value) for end, value in message["steps"]),
                    duration_s=message["duration_s"],
                    code_digest=message.get("code", ""),
                )
            )

    def fail(self, why: str) -> None:
        """Sets the outcome FAILED, unless there already is an outcome."""
        if not self.done.done():
            took = asyncio.get_running_loop().time() - self.started if self.started else 0.0
            self.done.set_result(
                VerifierScore(
                    self.verifier, ScoreOutcome.FAILED, detail=why, duration_s=took, code_digest=self.code_digest
                )
            )


@dataclass(eq=False)
class _Group:
    """The completions of one prompt for one verifier."""

    waiting: deque[Job] = field(default_factory=deque)
    num_open: int = 0
    """Completions without an outcome."""
    lead: int = 0
    """Completions judged within their slice, minus late completions. Below 0 the group waits behind other groups."""


@dataclass(eq=False)
class _Line:
    """The completions that wait for one verifier. Groups are in order of arrival."""

    groups: dict[str, _Group] = field(default_factory=dict)
    behind: dict[str, _Group] = field(default_factory=dict)
    """Groups whose completions so far were mostly late."""
    late: deque[Job] = field(default_factory=deque)
    spent_s: float = 0.0
    """Time that processes have spent on its completions. Current completions count with their usual time."""


class JobQueue:
    """The waiting completions. The next is the oldest completion for the verifier with the least spent time.

    Two rules keep some completions from delaying all others.

    Slow verifiers leave one process free while quick verifiers are in use, so that hanging completions do not delay
    every other verifier until the deadline.

    Each completion has a slice of time, a few times its verifier's usual time. Beyond it the completion is late. While
    others wait, late completions, and groups whose completions were mostly late, get a quarter of the processes' time.
    """

    def __init__(self, num_processes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_processes = num_processes
        self._clock = clock
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._asked: dict[str, float] = {}
        """The arrival of the last completion, by verifier."""
        self._mean_s: dict[str, float] = {}
        self._positions = itertools.count()
        self._spent_s = self._spent_late_s = 0.0
        """Time that processes have spent on all completions, and on completions under the second rule."""

    def __len__(self) -> int:
        return sum(
            len(line.late) + sum(len(group.waiting) for group in (*line.groups.values(), *line.behind.values()))
            for line in self._lines.values()
        )

    def add(self, job: Job) -> None:
        job.position = next(self._positions)
        job.group = job.group or f"#{job.position}"
        self._asked[job.verifier] = self._clock()
        line = self._lines[job.verifier]
        group = _group_of(line, job) or line.groups.setdefault(job.group, _Group())
        group.waiting.append(job)
        group.num_open += 1
        job.done.add_done_callback(lambda _: self._close(job))

    def put_back(self, job: Job) -> None:
        """Returns a completion whose process died to its former position."""
        line = self._lines[job.verifier]
        group = _group_of(line, job)
        if job.is_late or group is None:
            line.late.appendleft(job)
        else:
            group.waiting.appendleft(job)

    def put_off(self, job: Job) -> None:
        """Returns a late completion that a process has stopped judging. It will be judged without a slice."""
        job.was_put_off = True
        self._lines[job.verifier].late.append(job)

    def take(self, running: Collection[Job]) -> Job | None:
        """Returns the next completion, given the completions in work; None if none waits or may start."""
        refuses_slow = self._refuses_slow([job.verifier for job in running])
        lines = [line for verifier, line in self._lines.items() if not (refuses_slow and self._is_slow(verifier))]
        lines.sort(key=lambda line: line.spent_s)
        timely = _next(lines, lambda line: _first(line.groups))
        if timely is None or self._is_turn_of_late(running):
            late = _next(lines, lambda line: _first(line.behind)) or _next(lines, lambda line: _head(line.late))
            timely = late or timely
        if timely is not None:
            line = self._lines[timely.verifier]
            group = _group_of(line, timely)
            (line.late if timely.is_late or group is None else group.waiting).popleft()
            line.spent_s += self._usual_s(timely)
        return timely

    def slice_s(self, job: Job) -> float:
        """Returns the time after which a completion is late."""
        return min(max(_SLICE_PER_MEAN * self._usual_s(job), _MIN_SLICE_S), _MAX_SLICE_S)

    def overran(self, job: Job) -> None:
        """Records that the slice of a completion is over."""
        job.is_late = True
        self._count(job, -1)

    def took(self, job: Job, duration_s: float, outcome: ScoreOutcome | None = None) -> None:
        """Records the time of a process on a completion, and the outcome; None if it was stopped."""
        if self._spent_s > _MEMORY_S:
            self._spent_s, self._spent_late_s = self._spent_s / 2, self._spent_late_s / 2
            for line in self._lines.values():
                line.spent_s /= 2
        self._spent_s += duration_s
        self._lines[job.verifier].spent_s += duration_s - self._usual_s(job)
        self._spent_late_s += duration_s if job.is_late else 0.0
        if not job.is_late:
            self._count(job, 1)
        # The time on completions that cannot be judged in time says nothing about other completions.
        if outcome is ScoreOutcome.SCORED or not job.can_stop:
            mean_s = self._mean_s.get(job.verifier, duration_s)
            self._mean_s[job.verifier] = mean_s + _SMOOTHING * (duration_s - mean_s)

    def to_stop(self, running: Iterable[Job]) -> list[Job]:
        """Returns the late completions that processes should stop judging while others wait. A quarter of the processes
        keep the oldest completions that were put off."""
        late = sorted((job for job in running if job.is_late), key=lambda job: job.started)
        kept = [job for job in late if job.was_put_off][: self._max_late]
        return [job for job in late if job.can_stop and job not in kept] if self._has_timely else []

    def fail_all(self, why: str) -> None:
        for line in self._lines.values():
            for jobs in (*(group.waiting for group in (line.groups | line.behind).values()), line.late):
                while jobs:
                    jobs.popleft().fail(why)

    @property
    def _has_timely(self) -> bool:
        """Whether a completion waits that is not subject to the second rule."""
        return any(_first(line.groups) for line in self._lines.values())

    @property
    def _max_late(self) -> int:
        return max(1, int(_LATE_SHARE * self._num_processes))

    def _count(self, job: Job, difference: int) -> None:
        """Counts a completion for or against its group, which may change the group's place."""
        line = self._lines[job.verifier]
        if (group := _group_of(line, job)) is None:
            return
        group.lead += difference
        before, after = (line.groups, line.behind) if group.lead < 0 else (line.behind, line.groups)
        if job.group in before:
            after[job.group] = before.pop(job.group)

    def _close(self, job: Job) -> None:
        line = self._lines[job.verifier]
        if (group := _group_of(line, job)) is not None:
            group.num_open -= 1
            if group.num_open == 0:
                line.groups.pop(job.group, None)
                line.behind.pop(job.group, None)

    def _is_turn_of_late(self, running: Collection[Job]) -> bool:
        num_late = sum(job.is_late for job in running)
        return num_late < self._max_late and self._spent_late_s <= _LATE_SHARE * self._spent_s

    def _usual_s(self, job: Job) -> float:
        return self._mean_s.get(job.verifier, 0.0)

    def _is_slow(self, verifier: str) -> bool:
        return self._mean_s.get(verifier, 0.0) > _LONG_S

    def _refuses_slow(self, running: Collection[str]) -> bool:
        num_slow = sum(map(self._is_slow, running))
        if self._num_processes == 1 or num_slow < self._num_processes - 1:
            return False
        since = self._clock() - _SHARED_FOR_S
        return any(asked >= since and not self._is_slow(verifier) for verifier, asked in self._asked.items())


def _group_of(line: _Line, job: Job) -> _Group | None:
    return line.groups.get(job.group) or line.behind.get(job.group)


def _first(groups: dict[str, _Group]) -> Job | None:
    """Returns the first waiting completion in the groups, without removing it."""
    return next((job for group in groups.values() if (job := _head(group.waiting))), None)


def _head(jobs: deque[Job]) -> Job | None:
    """Returns the first completion whose caller still waits. Removes the completions before it."""
    while jobs and jobs[0].done.done():
        jobs.popleft()
    return jobs[0] if jobs else None


def _next(lines: Sequence[_Line], head: Callable[[_Line], Job | None]) -> Job | None:
    """Returns the head of the first line that has one. Among lines with the same spent time the oldest head wins."""
    for _, alike in itertools.groupby(lines, key=lambda line: line.spent_s):
        heads = [job for line in alike if (job := head(line))]
        if heads:
            return min(heads, key=lambda job: job.position)
    return None
