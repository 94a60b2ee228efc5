"""A deadline that interrupts Python code in the main thread."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from services.reward.verdict import Unscorable


class _OutOfTime(BaseException):
    """Not an Exception: computer algebra catches those and calls the rest of its work a failure."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Ends the block after `seconds` with `Unscorable`, that says `what` took so long.

    Works in the main thread, which is the one of a pool process; elsewhere, and inside long computations in C, the
    pool's own deadline stands for it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _OutOfTime:
        raise Unscorable(f"{what} took longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
