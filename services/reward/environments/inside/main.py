"""The main loop of a process of environments, which reads calls from stdin, and answers each on stdout.

Each call is a task of one event loop, and reports its beginning: a method that is no coroutine runs alone, and other
calls wait until it returns. The process reports how long calls have computed, and the parent ends a process in which a
call hangs. The time limit of a call does not count the time in which other calls compute.
"""

import asyncio
import contextlib
import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context, ContextVar
from typing import Any, BinaryIO, TypeVarTuple

from services.reward.environments.inside.answers import BadAnswer
from services.reward.environments.inside.episodes import Episodes
from services.reward.environments.inside.loading import CannotLoad, LoadedEnvironment, load
from services.reward.process.frames import encode_frame, take_pipes
from services.reward.process.limits import limit_process
from services.reward.process.source import error_line
from shoal.environment import Broken, InvalidTask, Unscorable

_MAX_DETAIL_CHARS = 500
_MAX_TRACEBACK_CHARS = 20_000
_HEAD_BYTES = 4
_REPORT_S = 0.1
"""Computing time of calls after which it is reported to the parent."""

_Arguments = TypeVarTuple("_Arguments")

_current: ContextVar["CallClock | None"] = ContextVar("_current", default=None)
"""The clock of the call that a callback belongs to, also of the tasks that the call has started."""


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that measures how long its callbacks compute. Nothing else happens in that time."""

    def __init__(self) -> None:
        super().__init__()
        self.busy_s = 0.0
        """The time that all callbacks have taken."""
        self.after_each: Callable[[], None] = lambda: None
        """A function that is called after each callback."""

    def call_soon(
        self, callback: Callable[[*_Arguments], object], *args: *_Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """Overrides the method of every event loop through which all steps of tasks pass."""
        return super().call_soon(self._timed, callback, *args, context=context)

    def _timed(self, callback: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
        began_s = self.time()
        try:
            callback(*args)
        finally:
            took_s = self.time() - began_s
            self.busy_s += took_s
            if (clock := _current.get()) is not None:
                clock.own_s += took_s
            self.after_each()


class CallClock:
    """The time that a call has left. The clock stands still while other calls compute, at most `max_others_s`."""

    def __init__(self, loop: TimedLoop, timeout_s: float, max_others_s: float) -> None:
        self._loop, self._timeout_s, self._max_others_s = loop, timeout_s, max_others_s
        self._began_s, self._busy_before_s = loop.time(), loop.busy_s
        self.own_s = 0.0
        """The time that the call's callbacks have taken."""

    def left_s(self) -> float:
        others_s = self._loop.busy_s - self._busy_before_s - self.own_s
        return self._timeout_s + min(others_s, self._max_others_s) - (self._loop.time() - self._began_s)


@contextlib.contextmanager
def limited(limit: asyncio.Timeout, timeout_s: float, max_others_s: float) -> Iterator[None]:
    """Makes `limit`, a timeout without a deadline, expire when the block's call has no time left by its `CallClock`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    clock = CallClock(loop, timeout_s, max_others_s)
    _current.set(clock)
    timer: asyncio.TimerHandle | None = None

    def check() -> None:
        nonlocal timer
        if (left_s := clock.left_s()) > 0:
            timer = loop.call_later(left_s, check)
        else:
            limit.reschedule(loop.time())

    check()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def main(memory_bytes: int, parent_pid: int) -> None:
    limit_process(parent_pid=parent_pid, memory_bytes=memory_bytes)
    logging.disable(logging.NOTSET)
    calls, answers = take_pipes(shows_output=True)
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TimedLoop)
        runner.run(_Process(answers, loop).serve(calls))


class _Process:
    def __init__(self, answers: BinaryIO, loop: TimedLoop) -> None:
        self._answers, self._loop = answers, loop
        self._pid = os.getpid()
        self._reported_s = 0.0
        loop.after_each = self._report
        self._tasks: set[asyncio.Task[None]] = set()
        self._loaded: LoadedEnvironment | None = None
        self._episodes: Episodes | None = None

    async def serve(self, calls: BinaryIO) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), calls)
        while True:
            try:
                head = await reader.readexactly(_HEAD_BYTES)
                call = json.loads(await reader.readexactly(int.from_bytes(head, "little")))
            except asyncio.IncompleteReadError:
                return
            task = asyncio.create_task(self._answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Mapping[str, Any]) -> None:
        self._write({"id": call["id"], "event": "began"})
        try:
            async with asyncio.timeout(None) as limit:
                with limited(limit, call["timeout_s"], call["max_others_s"]):
                    value = await self._called(call)
            answer = {"value": value}
        except BaseException as error:  # Whatever the code raises, other calls of the process go on.
            if isinstance(error, TimeoutError) and limit.expired():
                answer = _error("late", f"{call['call']} took longer than {call['timeout_s']:g} s")
            elif isinstance(error, asyncio.CancelledError) and _is_canceled():
                answer = _error("canceled", "the episode was closed")
            else:
                answer = self._raised(error)
        self._write({"id": call["id"], "event": "answer"} | answer)

    def _report(self) -> None:
        """Reports the computing time of calls to the parent, if other calls wait."""
        if self._loop.busy_s >= self._reported_s + _REPORT_S and len(self._tasks) > 1:
            self._write({"event": "busy"})

    def _write(self, message: Mapping[str, Any]) -> None:
        if os.getpid() != self._pid:  # A process that the code has forked would answer as well, and take calls.
            os._exit(0)
        self._reported_s = self._loop.busy_s
        self._answers.write(encode_frame({**message, "busy_s": self._reported_s}))

    async def _called(self, call: Mapping[str, Any]) -> Any:
        match call["call"]:
            case "load":
                self._loaded = load(call["code"])
                self._episodes = Episodes(self._loaded, call["max_chars"])
                return None
            case "describe":
                assert self._loaded is not None
                return await self._loaded.describe()
        assert self._episodes is not None
        return await self._episodes.call(call)

    def _raised(self, error: BaseException) -> dict[str, Any]:
        path = self._loaded.path if self._loaded else ""
        known = {InvalidTask: "invalid_task", Unscorable: "unscorable", CannotLoad: "cannot_load", Broken: "broken"}
        kind = next((kind for known_class, kind in known.items() if isinstance(error, known_class)), "failed")
        if kind != "failed":
            return _error(kind, str(error))
        if isinstance(error, BadAnswer):
            return _error(kind, f"{path}: {error}" if path else str(error))
        full = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
        return _error(kind, error_line(error, path), full)


def _error(kind: str, detail: str, full: str = "") -> dict[str, Any]:
    short = detail[:_MAX_DETAIL_CHARS].encode("utf-8", "replace").decode("utf-8")
    return {"error": {"kind": kind, "detail": short, "traceback": full}}


def _is_canceled() -> bool:
    """Returns whether the call is canceled from outside. Its own code may raise the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
