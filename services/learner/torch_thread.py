"""Rank 0's one thread for torch: every command of the learner runs here, in the order submitted, on all ranks."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from services.learner.rank import LearnerRank
from services.learner.ranks import IDLE_S, Command
from shoal.errors import Internal, ShoalError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Job:
    command: Command
    body: bytes
    check: Callable[[LearnerRank], None]
    work: Callable[[LearnerRank], Any]
    future: "Future[Any]"


class TorchThread:
    """Runs commands on rank 0 and tells the other ranks to take part.

    A command may fail with an error of the domain and the next one runs. Anything else leaves the ranks in states
    that nobody knows: it ends the thread, and `on_death` is called, in it, with what happened.
    """

    def __init__(self, make_rank: Callable[[], LearnerRank], on_death: Callable[[str], None]) -> None:
        """`make_rank` runs in the thread and may block until all ranks have come."""
        self._make_rank = make_rank
        self._on_death = on_death
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._num_open = 0
        self._death = ""
        # Daemon: a step that will not end must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)

    @property
    def num_open(self) -> int:
        """Commands that run or wait."""
        return self._num_open

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        command: Command,
        body: bytes,
        work: Callable[[LearnerRank], _T],
        *,
        check: Callable[[LearnerRank], None] = lambda rank: None,
    ) -> "Future[_T]":
        """Has all ranks run a command; the result is what `work` returns on rank 0.

        `check` runs before the other ranks hear of it: what it raises is the result. It may wait.
        """
        future: Future[_T] = Future()
        if self._death:
            future.set_exception(Internal(self._death))
            return future
        self._num_open += 1
        future.add_done_callback(self._close_one)
        self._jobs.put(_Job(command, body, check, work, future))
        return future

    def close(self, timeout_s: float) -> bool:
        """Lets the ranks leave after what runs; whether they did in time."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _close_one(self, _: "Future[Any]") -> None:
        self._num_open -= 1

    def _run(self) -> None:
        try:
            rank = self._make_rank()
            while True:
                try:
                    job = self._jobs.get(timeout=IDLE_S)
                except queue.Empty:
                    rank.ranks.send(Command.IDLE)
                    continue
                if job is None:
                    rank.ranks.send(Command.STOP)
                    rank.ranks.leave()
                    return
                self._take(job, rank)
        except Exception as error:
            _log.exception("the learner cannot go on")
            self._death = f"the learner cannot go on: {type(error).__name__}: {error}"
            self._on_death(self._death)
            while not self._jobs.empty():
                job = self._jobs.get()
                # Some callers have gone: to answer them is an error.
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(Internal(self._death))

    def _take(self, job: _Job, rank: LearnerRank) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            job.check(rank)
            rank.ranks.send(job.command, job.body)
            result = job.work(rank)
        except ShoalError as error:
            job.future.set_exception(error)
        except BaseException as error:
            job.future.set_exception(Internal(f"{type(error).__name__}: {error}"))
            raise
        else:
            job.future.set_result(result)
