"""Rank 0's only thread for torch, which runs the learner's commands on all ranks, in the order of submission."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from services.learner.commands import LearnerCommands
from services.learner.model.machine_errors import memory_cure
from services.learner.ranks.process_group import IDLE_S, Command
from shoal.errors import Internal, ShoalError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Job:
    command: Command
    body: bytes
    check: Callable[[LearnerCommands], None]
    work: Callable[[LearnerCommands], Any]
    future: "Future[Any]"
    deadline: float
    """The deadline of the command, on the monotonic clock."""


class TorchThread:
    """Runs commands on rank 0 and sends them to the other ranks.

    After a command that raised a `ShoalError` the next command runs. Any other error leaves the ranks in unknown
    states, so such an error ends the thread, which calls `on_death` with the error's description. If a command hangs,
    another thread calls `on_death`, since nothing else can end the command.
    """

    def __init__(
        self,
        make_commands: Callable[[], LearnerCommands],
        on_death: Callable[[str], None],
        explain: Callable[[str], str] = str,
    ) -> None:
        """`make_commands` runs in the thread and may block until all ranks have joined.

        `explain` returns the known cause of an error that ends the thread, or the error itself. `explain` may block.
        """
        self._make_commands = make_commands
        self._on_death = on_death
        self._explain = explain
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._num_open = 0
        self._death = ""
        self._farewell = Command.STOP
        # Daemon: a step that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)

    @property
    def num_open(self) -> int:
        """Number of commands that run or wait."""
        return self._num_open

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        command: Command,
        body: bytes,
        work: Callable[[LearnerCommands], _T],
        *,
        check: Callable[[LearnerCommands], None] = lambda commands: None,
        within_s: float | None = None,
    ) -> "Future[_T]":
        """Runs a command on all ranks. The future returns the result of `work` on rank 0.

        The caller waits `within_s` seconds for the result. A command that takes longer is considered hung.

        `check` runs before the command goes to the other ranks, and may block. If it raises, the future gets the error.
        """
        future: Future[_T] = Future()
        if self._death:
            future.set_exception(Internal(self._death))
            return future
        self._num_open += 1
        future.add_done_callback(self._close_one)
        deadline = math.inf if within_s is None else time.monotonic() + within_s
        self._jobs.put(_Job(command, body, check, work, future, deadline))
        return future

    def close(self, timeout_s: float, *, restarts: bool = False) -> bool:
        """Lets the ranks leave after the commands that run or wait. Returns whether the ranks left in time.

        With `restarts` the other ranks end with an exit code that makes torchrun start them again.
        """
        self._farewell = Command.RESTART if restarts else Command.STOP
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _close_one(self, _: "Future[Any]") -> None:
        self._num_open -= 1

    def _run(self) -> None:
        try:
            commands = self._make_commands()
            while True:
                try:
                    job = self._jobs.get(timeout=IDLE_S)
                except queue.Empty:
                    commands.process_group.send_command(Command.IDLE)
                    continue
                if job is None:
                    commands.process_group.send_command(self._farewell)
                    commands.process_group.leave()
                    return
                with self._bounded(job):
                    self._take(job, commands)
        except Exception as error:
            self._die(error)
            while not self._jobs.empty():
                job = self._jobs.get()
                # Skip callers that have canceled: setting their result would raise.
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(Internal(self._death))

    def _die(self, error: BaseException) -> None:
        if not self._death:
            _log.error("the learner cannot continue", exc_info=error)
            self._death = (
                f"the learner cannot continue: {self._explain(f'{type(error).__name__}: {error}{memory_cure(error)}')}"
            )
            self._on_death(self._death)

    @contextmanager
    def _bounded(self, job: _Job) -> Iterator[None]:
        """Reports the learner as dead if a command has not ended by its deadline."""
        left_s = job.deadline - time.monotonic()
        if not 0 < left_s <= threading.TIMEOUT_MAX:  # No caller waits, or a caller waits forever.
            yield
            return
        overrun = (
            f"the learner hangs: {job.command.name} had not ended after {left_s:.0f} s, at its caller's deadline "
            "(coordinator.train_step_timeout_s, weights.timeout_s or checkpoint.timeout_s)"
        )
        watchdog = threading.Timer(left_s, self._on_death, (overrun,))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()

    def _take(self, job: _Job, commands: LearnerCommands) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            job.check(commands)
            commands.process_group.send_command(job.command, job.body)
            result = job.work(commands)
            # Release the cache before the caller learns of the end: it may then wake or start an engine.
            commands.release_cache()
        except ShoalError as error:
            try:
                commands.release_cache()
            finally:
                job.future.set_exception(error)
        except BaseException as error:
            self._die(error)  # Die before the caller learns of the error: it then asks for the learner's state.
            job.future.set_exception(Internal(self._death))
            raise
        else:
            job.future.set_result(result)
