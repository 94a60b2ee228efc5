"""A deadline that interrupts Python code in the main thread."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from services.reward.common.verdict import Unscorable

_INTERVAL_S = 1.0
"""Time until the deadline rings again. Python drops exceptions that are raised in destructors and in callbacks of its
garbage collector, and a ring may happen there."""


class _OutOfTime(BaseException):
    """Not an Exception: computer algebra would catch it and continue."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Ends the block with `Unscorable` after `seconds`. The message says that `what` took too long.

    Works in the main thread, as in a pool process. In other threads, and during long computations in C, only the pool's
    own deadline applies.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    is_over = False

    def ring(number: int, frame: FrameType | None) -> None:
        if not is_over:
            raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _INTERVAL_S)
    try:
        yield
    except _OutOfTime:
        is_over = True
        raise Unscorable(f"{what} took longer than {seconds:g} s") from None
    finally:
        is_over = True  # Set this first: a late ring must not escape from here.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
