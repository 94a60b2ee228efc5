"""One trial: a reader gets a file, and must return or raise a `ShoalError`, in time."""

import re
import signal
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from shoal.errors import Internal, ShoalError

if TYPE_CHECKING:
    from tests.support.fuzzed_files.targets import Target

DEADLINE_S = 10.0
LEAKS = re.compile(r'Traceback|File "|site-packages|\.py", line|\b0x[0-9a-f]{8,}')


class TooLong(BaseException):
    """Not an Exception: a reader might catch that."""


def check_message(error: ShoalError) -> None:
    """Fails for an error that shows what only developers can read."""
    assert not LEAKS.search(error.message), f"the message shows code: {error.message[:500]}"
    assert not isinstance(error, Internal), error.message
    assert error.message, "the error says nothing"


def problem(target: "Target", data: bytes, deadline_s: float = DEADLINE_S) -> str:
    """Returns what is wrong with a reader that gets these contents; empty if nothing is. Main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong("".join(traceback.format_stack(frame, limit=8)))

    before = signal.signal(signal.SIGALRM, ring)
    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-") as folder:
        signal.setitimer(signal.ITIMER_REAL, deadline_s, 1.0)
        try:
            target.read(data, Path(folder))
        except ShoalError as error:
            try:
                check_message(error)
            except AssertionError as wrong:
                return str(wrong)
        except TooLong as late:
            return f"takes longer than {deadline_s:g} s: {late}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "".join(traceback.format_exception(error))[-3000:]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    return ""
