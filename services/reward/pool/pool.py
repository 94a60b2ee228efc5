"""Verifiers in processes that can be killed."""

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from services.reward.custom.code import CustomVerifier
from services.reward.pool.job_queue import Job, JobQueue
from services.reward.pool.output import LineBudget, Tracebacks, VerifierOutput
from services.reward.pool.slow import STAGES_S, SlowVerifiers
from services.reward.process.child_process import ChildProcess
from services.reward.process.frames import Message
from services.reward.process.supervisor import Supervisor
from shoal.errors import Unavailable
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

# A verifier's imports take seconds on a busy machine. After this time they hang.
_LOAD_TIMEOUT_S = 120.0
_MAX_ATTEMPTS = 2
_BACKOFF_S = 0.1, 10.0

_RUNNING, _WAITING = metrics.gauge(names.REWARD_RUNNING), metrics.gauge(names.REWARD_WAITING)
_WAIT, _RESTARTS = metrics.histogram(names.REWARD_WAIT), metrics.counter(names.REWARD_POOL_RESTARTS)

_STOP_S, _STOP_AGAIN_S = 1.0, 0.1
"""CPU time after which a process that does not stop judging a completion is killed, and time between repeated signals.

A process that gets no CPU on a busy machine cannot stop, so that time does not count; `reward.timeout_s` does."""


class Seat(ChildProcess):
    """A process of the pool."""

    job: Job | None = None
    is_stopping = False
    """Whether the process was told to stop judging its job."""
    _watch: asyncio.TimerHandle | None = None

    def watch(self, seconds: float, look: Callable[[], None]) -> None:
        """Calls `look` after some time. Replaces an earlier watch."""
        self.end_watch()
        self._watch = asyncio.get_running_loop().call_later(seconds, look)

    def end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def stop(self) -> None:
        """Tells the process to stop judging its job, and kills it if it does not stop."""
        if not self.is_stopping and self.job is not None:
            self.is_stopping = True
            self._tell(self.job, self._cpu_time_s() + _STOP_S)

    def _tell(self, job: Job, until_s: float) -> None:
        # Repeat the signal: Python drops its exception in a destructor or in a callback of the garbage collector.
        if self.job is not job or job.done.done() or self.is_lost:
            return
        if self._cpu_time_s() < until_s:
            self.interrupt()
            asyncio.get_running_loop().call_later(_STOP_AGAIN_S, self._tell, job, until_s)
        else:
            self.kill("it did not stop judging a slow completion")

    def _cpu_time_s(self) -> float:
        """Returns the CPU time that the process has used; 0 if it has ended."""
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0


class VerifierPool:
    """Judges completions in `num_processes` processes, each one completion at a time.

    Every call of `judge` gets an answer. A process that runs out of time is killed, and its completion is FAILED. The
    completion of a process that dies, perhaps killed from outside, gets a second try. In both cases the process is
    replaced. Unusually long completions are stopped while others wait, and judged anew later (`JobQueue`).
    """

    def __init__(
        self,
        *,
        num_processes: int,
        timeout_s: float,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        keep_thoughts: Collection[str] = (),
    ) -> None:
        """`timeout_s` is the longest time of a verifier on a completion. `options` has the options of verifiers, which
        otherwise are the defaults. `keep_thoughts` has the verifiers that also read thoughts."""
        self._options = options or {}
        self._keep_thoughts = list(keep_thoughts)
        self._custom: dict[str, CustomVerifier] = {}
        self._tracebacks = Tracebacks()
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._seats = Supervisor("verifier process", self._new_seat, _begin, backoff_s=_BACKOFF_S)
        self._idle: deque[Seat] = deque()
        self._waiting = JobQueue(num_processes)
        self._slow = SlowVerifiers(timeout_s)
        self._budget = LineBudget()

    @property
    def pids(self) -> list[int]:
        return [seat.pid for seat in self._seats.processes]

    @property
    def num_restarts(self) -> int:
        """The number of processes that were replaced because they died, hung, or had outdated code."""
        return self._seats.num_replaced

    @property
    def notice(self) -> str:
        """A message for people about slow custom verifiers; empty if there are none."""
        return self._slow.notice

    @property
    def num_running(self) -> int:
        return sum(1 for seat in self._seats.processes if seat.job is not None)

    async def start(self) -> None:
        """Starts the processes. Returns when all take jobs. Raises `Unavailable` if they do not start."""
        seats = [await self._seats.add() for _ in range(self._num_processes)]
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await asyncio.gather(*(seat.settled.wait() for seat in seats))
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
        `group` names the completion's prompt, and `can_stop` is the field of `Verifier`."""
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
        for seat in self._seats.processes:
            if seat.takes_work:
                seat.send({"code": asdict(verifier.code)})

    def renew(self) -> None:
        """Replaces all processes, since each imports a module only once. Their current completions are judged again."""
        self._idle.clear()
        for seat in self._seats.processes:
            if not seat.takes_work:
                continue
            if seat.job is not None:
                seat.job.attempts -= 1  # The attempt does not count.
            seat.kill("custom verifiers are read again")

    async def _judged(self, job: Job) -> VerifierScore:
        if self._seats.is_closing:
            # The stream began before the pool was replaced, so no process would ever take the completion.
            job.fail("the pool was closed")
        else:
            job.asked = asyncio.get_running_loop().time()
            self._waiting.add(job)
            self._dispatch()
        return await job.done

    def kill(self) -> None:
        """Ends all processes at once. Completions that wait are FAILED."""
        self._seats.kill("the pool was closed")
        self._waiting.fail_all("the pool was closed")

    async def close(self) -> None:
        """Ends all processes and waits until they are gone."""
        self.kill()
        await self._seats.all_gone.wait()

    def _new_seat(self) -> Seat:
        seat = Seat(
            lambda message: self._on_message(seat, message),
            lambda: self._on_exit(seat),
            name="the verifier's process",
            on_deadline=lambda why: self._give_up(seat, why),
            output=VerifierOutput(self._budget),
            command=(sys.executable, "-m", "services.reward.pool.worker"),
        )
        return seat

    def _dispatch(self) -> None:
        running = [seat.job for seat in self._seats.processes if seat.job is not None]
        while self._idle and (job := self._waiting.take(running)) is not None:
            running.append(job)
            self._start(self._idle.popleft(), job)
        if not self._idle:
            self._make_room()
        _RUNNING.set(len(running))
        _WAITING.set(len(self._waiting))

    def _make_room(self) -> None:
        """Stops late completions that keep processes from other completions."""
        judging = {seat.job: seat for seat in self._seats.processes if seat.job is not None and not seat.is_lost}
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
            seat.send({"verifier": job.verifier, "arguments": job.arguments(custom.parameters)})
            return
        seat.send(
            {"verifier": job.verifier, "completion": job.completion, "label": job.label, "token_ids": job.token_ids}
        )

    def _start_clock(self, seat: Seat) -> None:
        seat.set_deadline(self._timeout_s, f"no verdict within reward.timeout_s ({self._timeout_s:g} s)")
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

    def _give_up(self, seat: Seat, why: str) -> None:
        """Kills a process that hangs. Fails its completion now, not after the end of the process."""
        if seat.job is not None:
            self._waiting.took(seat.job, asyncio.get_running_loop().time() - seat.job.started, ScoreOutcome.FAILED)
            seat.job.fail(why)
        seat.kill(why)

    def _on_message(self, seat: Seat, message: Message) -> None:
        match message["event"]:
            case "ready":
                self._seats.failed_starts = 0
                seat.send({"options": self._options, "keep_thoughts": self._keep_thoughts})
                for custom in self._custom.values():
                    seat.send({"code": asdict(custom.code)})
                self._release(seat)
            case "loading":
                seat.set_deadline(_LOAD_TIMEOUT_S, f"the verifier did not load within {_LOAD_TIMEOUT_S:.0f} s")
                seat.end_watch()
            case "loaded":
                self._start_clock(seat)
            case "stopped":
                self._put_off(seat)
                self._release(seat)
            case "judged":
                self._take_verdict(seat, message)
                self._release(seat)

    def _take_verdict(self, seat: Seat, message: Message) -> None:
        if (job := seat.job) is None:
            return
        self._waiting.took(job, message["duration_s"], ScoreOutcome(message["outcome"]))
        job.answer(message)
        if message.get("traceback"):
            self._tracebacks.add(job.verifier, message["traceback"])
        if message.get("why_replace"):
            seat.kill(message["why_replace"])

    def _release(self, seat: Seat) -> None:
        if seat.is_lost:
            return
        seat.end_deadline()
        seat.end_watch()
        seat.job, seat.is_stopping = None, False
        self._idle.append(seat)
        self._dispatch()

    def _on_exit(self, seat: Seat) -> None:
        seat.end_watch()
        if seat in self._idle:
            self._idle.remove(seat)
        self._seats.replace(seat)
        if not self._seats.is_closing:
            _RESTARTS.add(1)
        if seat.is_stopping and not self._seats.is_closing:
            self._put_off(seat)
        elif seat.job is not None and not seat.job.done.done():
            self._retry(seat.job, seat.why_ended)

    def _put_off(self, seat: Seat) -> None:
        """Returns a late completion to the queue. This does not count as a failed attempt."""
        job = seat.job
        if job is not None and not job.done.done():
            self._waiting.took(job, asyncio.get_running_loop().time() - job.started)
            job.attempts -= 1
            self._waiting.put_off(job)

    def _retry(self, job: Job, why: str) -> None:
        if job.attempts < _MAX_ATTEMPTS and not self._seats.is_closing:
            self._waiting.put_back(job)
            self._dispatch()
        else:
            job.fail(why)


def _begin(seat: Seat) -> None:
    seat.set_deadline(_LOAD_TIMEOUT_S, f"the process did not start within {_LOAD_TIMEOUT_S:.0f} s")
