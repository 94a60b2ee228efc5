"""An event loop on a virtual clock, and the processes that share it.

The clock moves to the next timer as soon as nothing is ready, so an hour of a run takes as long as its computations.
Work for threads runs on the loop, at a moment that the seed decides. Nothing depends on the machine: one seed makes one
schedule.

A process is the code that runs in one context. When it is killed, its code stops where it is, without `except` and
`finally`; files stay as they are.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any
from unittest import mock

START_S = 1_000_000.0
"""Time of the wall clock at the begin of each schedule."""
WORK_S = 0.02
"""Longest time until a thread begins its work, and again until its result arrives."""
SLOW_WORK_S = 3.0
"""The same for a disk that is slow."""
SLOW_SHARE = 0.02


class Process:
    """A simulated process: its tasks, and whether it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have not ended. Those of a killed process stay: a task that is collected runs its `finally`."""
        self.held: deque[_Step] | None = None
        """While the process is stopped, the callbacks that are due."""
        self.at_kill: list[Callable[[], None]] = []
        """What the system does when the process is gone."""

    def kill(self) -> None:
        """Ends the process as kill -9 does."""
        if self.is_alive:
            self.is_alive, self.held = False, None
            for tell in self.at_kill:
                tell()

    def stop(self) -> None:
        """Stops the process as SIGSTOP does."""
        if self.is_alive and self.held is None:
            self.held = deque()

    def go_on(self) -> None:
        held, self.held = self.held, None
        for step in held or ():
            asyncio.get_running_loop().call_soon(step.run, context=step.context)

    def context(self) -> Context:
        context = copy_context()
        context.run(CURRENT.set, self)
        return context

    def create_task(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, context=self.context())


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process whose code runs; None for the system around all of them."""


class _Step:
    """A callback of a process: runs if the process does."""

    def __init__(self, process: Process, context: Context, callback: Callable[..., object], arguments: Any) -> None:
        self.process = process
        self.context = context
        self.handle: asyncio.Handle | None = None
        self._callback = callback
        self._arguments = arguments

    def run(self) -> None:
        if not self.process.is_alive or (self.handle is not None and self.handle.cancelled()):
            return
        if self.process.held is not None:
            self.process.held.append(self)
            return
        self._callback(*self._arguments)


class _Task(asyncio.Task[Any]):
    """A task that sets order by its number: by its address, the order would be another in each process."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: object) -> None:
        super().__init__()
        self._selector = self  # `BaseEventLoop` waits by calling `select` on it.
        self._now = START_S
        self._rng = random.Random(f"{seed}/threads")
        self._threads: dict[object, deque[Callable[[], None]]] = {}
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Moves the clock instead of waiting."""
        if timeout is None:
            raise RuntimeError("nothing is left that could happen, and the schedule has not ended")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_soon(callback, *args, context=context)
        step.handle = super().call_soon(step.run, context=step.context)
        return step.handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_at(when, callback, *args, context=context)
        step.handle = handle = super().call_at(when, step.run, context=step.context)
        return handle

    @staticmethod
    def _step(callback: Any, args: Any, context: Context | None) -> _Step | None:
        """Returns the step of a process; None where the callback belongs to none, or is a step already."""
        if isinstance(getattr(callback, "__self__", None), _Step):
            return None
        context = copy_context() if context is None else context
        process = context.get(CURRENT)
        return None if process is None else _Step(process, context, callback, args)

    def _make_task(self, loop: Any, work: Any, context: Context | None = None) -> "asyncio.Task[Any]":
        process = (copy_context() if context is None else context).get(CURRENT)
        task = _Task(work, loop=self, context=context)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda ended: process.tasks.pop(ended, None), context=Context())
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Runs the work of a thread: begins it a little later, if nobody cancels it before, and then delivers it.

        The work of an executor runs one after the other; that for the default one overlaps.
        """
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return done()
            try:
                result, error = func(*args), None
            except BaseException as raised:
                result, error = None, raised
            self.call_later(self._delay(), deliver, result, error)

        def deliver(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)
            done()

        def done() -> None:
            if executor is not None:
                queue.popleft()
                if queue:
                    self.call_soon(queue[0])

        if executor is None:
            self.call_later(self._delay(), work)
            return future
        queue = self._threads.setdefault(executor, deque())
        queue.append(lambda: self.call_later(self._delay(), work) and None)
        if len(queue) == 1:
            queue[0]()
        return future

    def _delay(self) -> float:
        return self._rng.random() * (SLOW_WORK_S if self._rng.random() < SLOW_SHARE else WORK_S)


@contextlib.contextmanager
def virtual_time(loop: VirtualLoop, seed: object) -> Iterator[None]:
    """Lets every clock of this process show the loop's time, and makes what is drawn at random follow the schedule."""
    state = random.getstate()
    random.seed(str(seed))
    with (
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "time", loop.time),
        mock.patch.object(time, "time_ns", lambda: int(loop.time() * 1e9)),
    ):
        try:
            yield
        finally:
            random.setstate(state)
