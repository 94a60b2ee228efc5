"""Functions of the main thread that a signal interrupts, such as a deadline's signal."""

import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

from services.reward.common.verdict import Unscorable

T = TypeVar("T")
_INTERVAL_S = 1.0
"""Time until the deadline rings again. Python drops exceptions that are raised in destructors and in callbacks of its
garbage collector, and a ring may happen there."""


class _OutOfTime(BaseException):
    """Derives from BaseException, since computer algebra would catch an Exception and continue."""


def within(seconds: float, what: str, judge: Callable[[], T]) -> T:
    """Returns what `judge` returns. Raises `Unscorable` after `seconds`: the message says that `what` took too long.

    Works in the main thread, as in a pool process. In other threads, and during long computations in C, only the pool's
    own deadline applies.
    """
    if threading.current_thread() is not threading.main_thread():
        return judge()
    before = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _INTERVAL_S)
    try:
        return _timed(judge)
    except _OutOfTime:
        raise Unscorable(f"{what} took longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_running(code: CodeType, frame: FrameType | None) -> bool:
    """Returns whether the frame, or a caller of it, belongs to a call of the function with this code.

    If so, an exception that a signal raises in the frame passes through that call. A flag could not tell this: it
    would be set or cleared a moment too late, and nothing would catch an exception that is raised in that moment.
    """
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _timed(judge: Callable[[], T]) -> T:
    return judge()


def _ring(number: int, frame: FrameType | None) -> None:
    if is_running(_timed.__code__, frame):
        raise _OutOfTime
