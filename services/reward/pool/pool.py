"""Verifiers in processes that can be killed."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from services.reward.custom.custom_verifiers import CustomVerifier
from services.reward.pool.job_queue import Job, JobQueue
from services.reward.pool.output import LineBudget, VerifierOutput
from services.reward.pool.slow import STAGES_S, SlowVerifiers
from services.reward.process.child_process import PoolProcess
from services.reward.process.frames import Message
from shoal.errors import Unavailable
from shoal.scores import ScoreOutcome, StepScore, VerifierScore
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

# A verifier's imports take seconds on a busy machine; past this they hang.
_LOAD_TIMEOUT_S = 120.0
_MAX_ATTEMPTS = 2
_MAX_TRACEBACKS = 100
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 10.0

_RUNNING, _WAITING = metrics.gauge(names.REWARD_RUNNING), metrics.gauge(names.REWARD_WAITING)
_WAIT, _RESTARTS = metrics.histogram(names.REWARD_WAIT), metrics.counter(names.REWARD_POOL_RESTARTS)


@dataclass(eq=False)
class _Seat:
    """A seat in the pool: its process, and what the process is doing."""

    process: PoolProcess
    output: VerifierOutput
    job: Job | None = None
    is_ready: bool = False
    """Whether the process has started and takes jobs."""
    deadline: asyncio.TimerHandle | None = None
    long: asyncio.TimerHandle | None = None
    """Reports that a custom verifier takes long."""
    why_killed: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class VerifierPool:
    """Judges completions in `num_processes` processes, each one completion at a time.

    Every call of `judge` is answered. A process that runs out of time on a completion is killed, and the completion
    is FAILED. A process that dies while it judges may have been killed from outside, so its completion gets a second
    try; after a second death it is FAILED. In both cases the process is replaced and no other completion is affected.
    """

    def __init__(
        self,
        *,
        num_processes: int,
        timeout_s: float,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        keep_thoughts: Collection[str] = (),
    ) -> None:
        """`timeout_s`: longest time for one verifier on one completion. `options`: by verifier, if not the
        defaults. `keep_thoughts`: verifiers that read thoughts as well."""
        self._options = options or {}
        self._keep_thoughts = list(keep_thoughts)
        self._custom: dict[str, CustomVerifier] = {}
        self._tracebacks: set[tuple[str, str]] = set()
        """Verifier and traceback of those in the log."""
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._seats: dict[PoolProcess, _Seat] = {}
        self._idle: deque[_Seat] = deque()
        self._waiting = JobQueue(num_processes)
        self._slow = SlowVerifiers(timeout_s)
        self._budget = LineBudget()
        self._replacements: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._closing = False
        self._all_gone = asyncio.Event()
        self.num_restarts = 0
        """Processes replaced because they died, hung, or had read other code."""

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._seats]

    @property
    def notice(self) -> str:
        """Custom verifiers that take long, for people; empty if there are none."""
        return self._slow.notice

    @property
    def num_running(self) -> int:
        return sum(1 for seat in self._seats.values() if seat.job is not None)

    async def start(self) -> None:
        """Starts the processes; returns once all take jobs.

        Raises `Unavailable` when they do not start.
        """
        seats = [await self._add_process() for _ in range(self._num_processes)]
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await asyncio.gather(*(seat.ready.wait() for seat in seats))
        except TimeoutError:
            self.kill()
            raise Unavailable(f"the verifier processes did not start within {_LOAD_TIMEOUT_S:.0f} s") from None
        if not all(seat.is_ready for seat in seats):
            self.kill()
            raise Unavailable("the verifier processes ended as they started; see the log of the reward service")

    async def judge(self, verifier: str, completion: str, label: Any, token_ids: Sequence[int] = ()) -> VerifierScore:
        """Waits for a process and its verdict. A completion that still waits when this is canceled is not judged.

        `token_ids` are needed by the verifiers that read more than text.
        """
        loop = asyncio.get_running_loop()
        return await self._judged(Job(verifier, completion, label, loop.create_future(), token_ids, asked=loop.time()))

    async def judge_custom(self, verifier: str, arguments: Callable[[frozenset[str]], Message]) -> VerifierScore:
        """Judges by a custom verifier that `use` has named. `arguments` returns the values of the named arguments."""
        loop = asyncio.get_running_loop()
        return await self._judged(Job(verifier, "", None, loop.create_future(), asked=loop.time(), arguments=arguments))

    def use(self, verifier: CustomVerifier) -> None:
        """Takes a custom verifier, or another version of one, for the completions that are not yet begun."""
        self._custom[verifier.code.name] = verifier
        for seat in self._seats.values():
            if seat.is_ready:
                seat.process.send({"code": asdict(verifier.code)})

    def renew(self) -> None:
        """Replaces all processes: a process imports a module once. The completions that they judge are judged again."""
        self._idle.clear()
        for seat in self._seats.values():
            if not seat.is_ready or seat.why_killed:
                continue
            if seat.job is not None:
                seat.job.attempts -= 1  # Not its fault.
            seat.why_killed = "custom verifiers are read again"
            seat.process.kill()

    async def _judged(self, job: Job) -> VerifierScore:
        if self._closing:
            # The stream began before the pool was replaced; no process would ever take the completion.
            job.fail("the pool was closed")
        else:
            self._waiting.add(job)
            self._dispatch()
        return await job.done

    def kill(self) -> None:
        """Ends all processes at once. Completions that wait are FAILED."""
        self._closing = True
        for task in self._replacements:
            task.cancel()
        for seat in list(self._seats.values()):
            seat.why_killed = "the pool was closed"
            seat.process.kill()
        self._waiting.fail_all("the pool was closed")
        if not self._seats:
            self._all_gone.set()

    async def close(self) -> None:
        """Ends all processes and waits until they are gone."""
        self.kill()
        await self._all_gone.wait()

    async def _add_process(self) -> _Seat:
        output = VerifierOutput(self._budget)
        process = PoolProcess(self._on_message, self._on_exit, on_output=lambda _, data: output.feed(data))
        seat = _Seat(process, output)
        self._seats[process] = seat
        try:
            await process.start()
        except BaseException as error:
            if not process.pid:
                del self._seats[process]
            if isinstance(error, OSError):
                raise Unavailable(f"no verifier process can be started: {error}") from error
            raise
        self._set_deadline(seat, _LOAD_TIMEOUT_S, "it did not start")
        return seat

    def _dispatch(self) -> None:
        running = [seat.job.verifier for seat in self._seats.values() if seat.job is not None]
        while self._idle and (job := self._waiting.take(running)) is not None:
            running.append(job.verifier)
            self._start(self._idle.popleft(), job)
        _RUNNING.set(len(running))
        _WAITING.set(len(self._waiting))

    def _start(self, seat: _Seat, job: Job) -> None:
        job.attempts += 1
        job.started = asyncio.get_running_loop().time()
        if job.attempts == 1:
            _WAIT.record(job.started - job.asked, {names.VERIFIER: job.verifier})
        seat.job = job
        self._start_clock(seat)
        if job.arguments is not None:
            custom = self._custom[job.verifier]
            job.code_digest = custom.digest
            seat.process.send({"verifier": job.verifier, "arguments": job.arguments(custom.parameters)})
            return
        seat.process.send(
            {"verifier": job.verifier, "completion": job.completion, "label": job.label, "token_ids": job.token_ids}
        )

    def _start_clock(self, seat: _Seat) -> None:
        self._set_deadline(seat, self._timeout_s, f"no verdict within reward.timeout_s ({self._timeout_s:g} s)")
        if seat.job is not None and seat.job.arguments is not None:
            self._watch_stage(seat, 0.0, STAGES_S)

    def _watch_stage(self, seat: _Seat, passed_s: float, stages_s: Sequence[float]) -> None:
        """Reports when the next stage of the seat's job is reached."""
        _stop_watching(seat)
        if stages_s:
            loop = asyncio.get_running_loop()
            seat.long = loop.call_later(stages_s[0] - passed_s, self._report_slow, seat, stages_s)

    def _report_slow(self, seat: _Seat, stages_s: Sequence[float]) -> None:
        if seat.job is not None and not seat.job.done.done():
            self._slow.report(seat.job.verifier, stages_s[0])
            self._watch_stage(seat, stages_s[0], stages_s[1:])

    def _set_deadline(self, seat: _Seat, seconds: float, why: str) -> None:
        if seat.deadline is not None:
            seat.deadline.cancel()
        seat.deadline = asyncio.get_running_loop().call_later(seconds, self._give_up, seat, why)

    def _give_up(self, seat: _Seat, why: str) -> None:
        """Kills a process that hangs; fails its completion now, not when the process is gone."""
        seat.why_killed = why
        if seat.job is not None:
            self._waiting.took(seat.job.verifier, asyncio.get_running_loop().time() - seat.job.started)
            seat.job.fail(why)
        seat.process.kill()

    def _on_message(self, process: PoolProcess, message: Message) -> None:
        seat = self._seats.get(process)
        if seat is None:
            return
        match message["event"]:
            case "ready":
                seat.is_ready = True
                seat.ready.set()
                self._failed_starts = 0
                process.send({"options": self._options, "keep_thoughts": self._keep_thoughts})
                for custom in self._custom.values():
                    process.send({"code": asdict(custom.code)})
                self._release(seat)
            case "loading":
                self._set_deadline(seat, _LOAD_TIMEOUT_S, "the verifier did not load")
                _stop_watching(seat)
            case "loaded":
                self._start_clock(seat)
            case "judged":
                job = seat.job
                if job is not None:
                    self._waiting.took(job.verifier, message["duration_s"])
                if job is not None and not job.done.done():
                    job.done.set_result(
                        VerifierScore(
                            verifier=job.verifier,
                            outcome=ScoreOutcome(message["outcome"]),
                            value=message["value"],
                            detail=message["detail"],
                            answer=message["answer"],
                            step_scores=tuple(StepScore(int(end), value) for end, value in message["steps"]),
                            duration_s=message["duration_s"],
                            code_digest=message.get("code", ""),
                        )
                    )
                if job is not None and message.get("traceback"):
                    self._log_traceback(job.verifier, message["traceback"])
                if message.get("why_replace"):
                    seat.why_killed = message["why_replace"]
                    process.kill()
                if not seat.why_killed:
                    self._release(seat)

    def _log_traceback(self, verifier: str, traceback: str) -> None:
        """Logs each traceback once, and at most a hundred: thousands of completions may raise the same."""
        if (verifier, traceback) not in self._tracebacks and len(self._tracebacks) < _MAX_TRACEBACKS:
            self._tracebacks.add((verifier, traceback))
            _log.error("the verifier %s raised\n%s", verifier, traceback)

    def _release(self, seat: _Seat) -> None:
        if seat.deadline is not None:
            seat.deadline.cancel()
        _stop_watching(seat)
        seat.job = None
        self._idle.append(seat)
        self._dispatch()

    def _on_exit(self, process: PoolProcess, how: str) -> None:
        seat = self._seats.pop(process)
        seat.output.end()
        if seat.deadline is not None:
            seat.deadline.cancel()
        _stop_watching(seat)
        if seat in self._idle:
            self._idle.remove(seat)
        seat.ready.set()
        if seat.job is not None and not seat.job.done.done():
            self._retry(seat.job, seat.why_killed or f"the verifier's process died ({how})")
        if self._closing:
            if not self._seats:
                self._all_gone.set()
            return
        why = seat.why_killed or f"it died ({how})"
        _log.warning("verifier process replaced", extra={"pid": process.pid, "why": why})
        self.num_restarts += 1
        _RESTARTS.add(1)
        self._failed_starts += 0 if seat.is_ready else 1
        task = asyncio.get_running_loop().create_task(self._replace())
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)

    def _retry(self, job: Job, why: str) -> None:
        if job.attempts < _MAX_ATTEMPTS and not self._closing:
            self._waiting.put_back(job)
            self._dispatch()
        else:
            job.fail(why)

    async def _replace(self) -> None:
        """Starts a process, and retries with growing pauses while new processes die at once."""
        while True:
            if self._failed_starts:
                await asyncio.sleep(min(_MIN_BACKOFF_S * 2**self._failed_starts, _MAX_BACKOFF_S))
            try:
                await self._add_process()
                return
            except Unavailable as error:
                self._failed_starts += 1
                _log.error("verifier process not replaced", extra={"error": error.message})


def _stop_watching(seat: _Seat) -> None:
    if seat.long is not None:
        seat.long.cancel()
