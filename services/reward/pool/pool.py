"""Verifiers in processes that can be killed."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.reward.custom.custom_verifiers import CustomVerifier
from services.reward.pool.job_queue import Job, JobQueue
from services.reward.pool.output import LineBudget, Tracebacks, VerifierOutput
from services.reward.pool.seat import Seat
from services.reward.pool.slow import STAGES_S, SlowVerifiers
from services.reward.process.child_process import PoolProcess
from services.reward.process.frames import Message
from shoal.errors import Unavailable
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

# A verifier's imports take seconds on a busy machine. After this time they hang.
_LOAD_TIMEOUT_S = 120.0
_MAX_ATTEMPTS = 2
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 10.0

_RUNNING, _WAITING = metrics.gauge(names.REWARD_RUNNING), metrics.gauge(names.REWARD_WAITING)
_WAIT, _RESTARTS = metrics.histogram(names.REWARD_WAIT), metrics.counter(names.REWARD_POOL_RESTARTS)


class VerifierPool:
    """Judges completions in `num_processes` processes, each one completion at a time.

    Every call of `judge` gets an answer. A process that runs out of time on a completion is killed, and the completion
    is FAILED. A process that dies while it judges may have been killed from outside, so its completion gets a second
    try, and is FAILED after a second death. In both cases the process is replaced, and other completions are not
    affected. Unusually long completions are stopped while others wait, and judged anew later (`JobQueue`).
    """

    def __init__(
        self,
        *,
        num_processes: int,
        timeout_s: float,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        keep_thoughts: Collection[str] = (),
    ) -> None:
        """`timeout_s` is the longest time of a verifier on a completion. `options` has options by verifier, if not the
        defaults. `keep_thoughts` has the verifiers that also read thoughts."""
        self._options = options or {}
        self._keep_thoughts = list(keep_thoughts)
        self._custom: dict[str, CustomVerifier] = {}
        self._tracebacks = Tracebacks()
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._seats: dict[PoolProcess, Seat] = {}
        self._idle: deque[Seat] = deque()
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
        """A message for people about slow custom verifiers; empty if there are none."""
        return self._slow.notice

    @property
    def num_running(self) -> int:
        return sum(1 for seat in self._seats.values() if seat.job is not None)

    async def start(self) -> None:
        """Starts the processes. Returns when all take jobs.

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

    async def judge(
        self,
        verifier: str,
        completion: str,
        label: Any,
        token_ids: Sequence[int] = (),
        *,
        group: str = "",
        can_stop: bool = True,
    ) -> VerifierScore:
        """Waits for a process and its verdict. A completion whose call is canceled while it waits is not judged.

        Verifiers that read more than text need `token_ids`. `group` names the completion's prompt, and `can_stop` is
        that of the verifier.
        """
        loop = asyncio.get_running_loop()
        job = Job(verifier, completion, label, loop.create_future(), token_ids, group, can_stop)
        return await self._judged(job)

    async def judge_custom(self, verifier: str, arguments: Callable[[frozenset[str]], Message]) -> VerifierScore:
        """Judges with a custom verifier that `use` has named. `arguments` returns the values of the named arguments."""
        loop = asyncio.get_running_loop()
        return await self._judged(Job(verifier, "", None, loop.create_future(), arguments=arguments))

    def use(self, verifier: CustomVerifier) -> None:
        """Uses a custom verifier, or a new version of it, for completions that have not begun."""
        self._custom[verifier.code.name] = verifier
        for seat in self._seats.values():
            if seat.is_ready:
                seat.process.send({"code": asdict(verifier.code)})

    def renew(self) -> None:
        """Replaces all processes: a process imports a module only once. Their current completions are judged again."""
        self._idle.clear()
        for seat in self._seats.values():
            if not seat.is_ready or seat.why_killed:
                continue
            if seat.job is not None:
                seat.job.attempts -= 1  # The attempt does not count.
            seat.why_killed = "custom verifiers are read again"
            seat.process.kill()

    async def _judged(self, job: Job) -> VerifierScore:
        if self._closing:
            # The stream began before the pool was replaced, so no process would ever take the completion.
            job.fail("the pool was closed")
        else:
            job.asked = asyncio.get_running_loop().time()
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

    async def _add_process(self) -> Seat:
        output = VerifierOutput(self._budget)
        process = PoolProcess(self._on_message, self._on_exit, on_output=lambda _, data: output.feed(data))
        seat = Seat(process, output)
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
        running = [seat.job for seat in self._seats.values() if seat.job is not None]
        while self._idle and (job := self._waiting.take(running)) is not None:
            running.append(job)
            self._start(self._idle.popleft(), job)
        if not self._idle:
            self._make_room()
        _RUNNING.set(len(running))
        _WAITING.set(len(self._waiting))

    def _make_room(self) -> None:
        """Stops late completions that keep processes from other completions."""
        judging = {seat.job: seat for seat in self._seats.values() if seat.job is not None and not seat.why_killed}
        for job in self._waiting.to_stop(judging):
            judging[job].stop()

    def _start(self, seat: Seat, job: Job) -> None:
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

    def _start_clock(self, seat: Seat) -> None:
        self._set_deadline(seat, self._timeout_s, f"no verdict within reward.timeout_s ({self._timeout_s:g} s)")
        job = seat.job
        if job is not None and job.arguments is not None:
            self._watch_stage(seat, 0.0, STAGES_S)
        elif job is not None and not job.is_late:
            seat.watch(self._waiting.slice_s(job), lambda: self._overran(job))

    def _overran(self, job: Job) -> None:
        self._waiting.overran(job)
        self._dispatch()

    def _watch_stage(self, seat: Seat, passed_s: float, stages_s: Sequence[float]) -> None:
        """Reports when the next stage of the seat's job is reached."""
        if stages_s:
            seat.watch(stages_s[0] - passed_s, lambda: self._report_slow(seat, stages_s))

    def _report_slow(self, seat: Seat, stages_s: Sequence[float]) -> None:
        if seat.job is not None and not seat.job.done.done():
            self._slow.report(seat.job.verifier, stages_s[0])
            self._watch_stage(seat, stages_s[0], stages_s[1:])

    def _set_deadline(self, seat: Seat, seconds: float, why: str) -> None:
        seat.set_deadline(seconds, lambda: self._give_up(seat, why))

    def _give_up(self, seat: Seat, why: str) -> None:
        """Kills a process that hangs. Fails its completion now, not after the end of the process."""
        seat.why_killed = why
        if seat.job is not None:
            self._waiting.took(seat.job, asyncio.get_running_loop().time() - seat.job.started, ScoreOutcome.FAILED)
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
                seat.end_watch()
            case "loaded":
                self._start_clock(seat)
            case "stopped":
                self._put_off(seat)
                if not seat.why_killed:
                    self._release(seat)
            case "judged":
                self._take_verdict(seat, message)
                if not seat.why_killed:
                    self._release(seat)

    def _take_verdict(self, seat: Seat, message: Message) -> None:
        if (job := seat.job) is None:
            return
        self._waiting.took(job, message["duration_s"], ScoreOutcome(message["outcome"]))
        job.answer(message)
        if message.get("traceback"):
            self._tracebacks.add(job.verifier, message["traceback"])
        if message.get("why_replace"):
            seat.why_killed = message["why_replace"]
            seat.process.kill()

    def _release(self, seat: Seat) -> None:
        seat.end_timers()
        seat.job, seat.is_stopping = None, False
        self._idle.append(seat)
        self._dispatch()

    def _on_exit(self, process: PoolProcess, how: str) -> None:
        seat = self._seats.pop(process)
        seat.output.end()
        seat.end_timers()
        if seat in self._idle:
            self._idle.remove(seat)
        seat.ready.set()
        if seat.is_stopping and not self._closing:
            self._put_off(seat)
        elif seat.job is not None and not seat.job.done.done():
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

    def _put_off(self, seat: Seat) -> None:
        """Returns a late completion to the queue. This does not count as a failed attempt."""
        job = seat.job
        if job is not None and not job.done.done():
            self._waiting.took(job, asyncio.get_running_loop().time() - job.started)
            job.attempts -= 1
            self._waiting.put_off(job)

    def _retry(self, job: Job, why: str) -> None:
        if job.attempts < _MAX_ATTEMPTS and not self._closing:
            self._waiting.put_back(job)
            self._dispatch()
        else:
            job.fail(why)

    async def _replace(self) -> None:
        """Starts a process. Retries with growing pauses while new processes die at once."""
        while True:
            if self._failed_starts:
                await asyncio.sleep(min(_MIN_BACKOFF_S * 2**self._failed_starts, _MAX_BACKOFF_S))
            try:
                await self._add_process()
                return
            except Unavailable as error:
                self._failed_starts += 1
                _log.error("verifier process not replaced", extra={"error": error.message})
