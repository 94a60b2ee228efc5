"""The time limits of calls that share an event loop: a call does not pay for what the others compute."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from typing import TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")

_current: ContextVar["CallClock | None"] = ContextVar("_current", default=None)
"""The clock of the call that a callback belongs to, also of the tasks that the call has started."""


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that measures how long its callbacks compute, in which time nothing else goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.busy_s = 0.0
        """What all callbacks have taken."""
        self.after_each: Callable[[], None] = lambda: None
        """Is called after each of them."""

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """As in every event loop. All steps of tasks come through here."""
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
    """How much time a call has left. It runs while the call computes and while it waits, and stands still while others
    compute, up to a bound."""

    def __init__(self, loop: TimedLoop, timeout_s: float, max_others_s: float) -> None:
        """`max_others_s`: longest time that it stands still."""
        self._loop, self._timeout_s, self._max_others_s = loop, timeout_s, max_others_s
        self._began_s, self._busy_before_s = loop.time(), loop.busy_s
        self.own_s = 0.0
        """What callbacks of the call have taken."""

    def left_s(self) -> float:
        others_s = self._loop.busy_s - self._busy_before_s - self.own_s
        return self._timeout_s + min(others_s, self._max_others_s) - (self._loop.time() - self._began_s)


@contextlib.contextmanager
def limited(limit: asyncio.Timeout, timeout_s: float, max_others_s: float) -> Iterator[None]:
    """Lets a timeout that has no deadline expire when the call of the block has used its time."""
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
