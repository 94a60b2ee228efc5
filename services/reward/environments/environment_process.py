"""A process of an environment, as the service sees it."""

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.reward.environments.code import EnvironmentCode
from services.reward.pool.output import LineBudget, VerifierOutput
from services.reward.process.child_process import ENVIRONMENT, ChildProcess
from services.reward.process.descendants import GUARD, MARK_VARIABLE, end_descendants
from services.reward.process.frames import Message

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0
_GRACE_S = 1.0
"""Time after a call's limit at which the process is ended. The process itself ends calls that wait, but not calls that
compute. Both limits grow by the computing time of other calls."""
_BEGIN_TIMEOUT_S = 60.0
"""Maximum time in which a process with a call neither runs nor begins the call."""
_ROOT = Path(__file__).resolve().parents[3]
_BOOT = """
import sys, types
for name in ("shoal", "services"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name]
from services.reward.environments.inside.main import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""
"""A script that runs the code without this project on the interpreter's path. Two package names are enough."""
_NOT_FOR_OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

BURST_BYTES, BYTES_PER_S = 4 << 20, 1 << 20
"""Limits of a process's output. If it prints more, it waits, so that the service can do other work."""


class BoundedOutput:
    """The output of one process, standard output and standard error, as it arrives."""

    def __init__(self, environment: str, process: ChildProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = VerifierOutput(LineBudget(clock), environment)
        self._process, self._clock = process, clock
        self._allowed_bytes, self._since = float(BURST_BYTES), clock()

    def feed(self, data: bytes) -> None:
        """Takes data, and logs the complete lines. Pauses the process if it prints too much."""
        now = self._clock()
        self._allowed_bytes = min(BURST_BYTES, self._allowed_bytes + (now - self._since) * BYTES_PER_S) - len(data)
        self._since = now
        self._lines.feed(data)
        if self._allowed_bytes < 0 and not self._process.is_lost:
            self._process.pause_output()
            asyncio.get_running_loop().call_later(-self._allowed_bytes / BYTES_PER_S, self._resume)

    def end(self) -> None:
        """Logs the beginning of a line that will not be completed."""
        self._lines.end()

    def _resume(self) -> None:
        if not self._process.is_lost:
            self._process.resume_output()


class CallFailed(Exception):
    """A call was answered with an error. `kind` is "failed", "broken", "late", "invalid_task", "unscorable", "canceled"
    or "cannot_load"."""

    def __init__(self, kind: str, detail: str, traceback: str = "") -> None:
        super().__init__(detail)
        self.kind, self.traceback = kind, traceback


class ProcessLost(Exception):
    """The process ended without an answer. `in_call` states whether the call had begun."""

    def __init__(self, why: str, *, in_call: bool) -> None:
        super().__init__(why)
        self.in_call = in_call


@dataclass(eq=False)
class _Call:
    name: str
    timeout_s: float
    max_others_s: float
    """Maximum time by which other calls that compute may delay its limit."""
    done: "asyncio.Future[Any]"
    logs_error: bool = True
    began_s: float = 0.0
    busy_before_s: float = 0.0
    """Computing time of the process's calls before it began."""
    deadline: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        return self.deadline is not None

    def left_s(self, now_s: float, busy_s: float) -> float:
        """Returns the time that the process has left. `busy_s` is its calls' computing time so far."""
        put_off_s = min(busy_s - self.busy_before_s, self.max_others_s)
        return self.timeout_s + _GRACE_S + put_off_s - (now_s - self.began_s)

    def end(self, value: Any = None, error: Exception | None = None) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        if self.done.done():  # The caller is gone.
            return
        if error is None:
            self.done.set_result(value)
        else:
            self.done.set_exception(error)
            self.done.exception()  # Retrieve the error, even if nobody awaits it any more.


def log_raised(environment: str, traceback: str) -> None:
    """Logs an exception of an environment's code."""
    _log.error("the environment %s raised\n%s", environment, traceback)


def _without_proxy() -> dict[str, str]:
    """Returns variables that keep an agent's calls of the policy from going through a proxy."""
    names = [name for name in ("no_proxy", "NO_PROXY") if name in os.environ] or ["no_proxy"]
    return {name: ",".join(filter(None, (os.environ.get(name), "127.0.0.1"))) for name in names}


class EnvironmentProcess(ChildProcess):
    """Runs one environment."""

    def __init__(
        self, code: EnvironmentCode, on_gone: Callable[["EnvironmentProcess"], object], num_sharing: int = 1
    ) -> None:
        """`on_gone` is called when the process and its descendants are gone. At most `num_sharing` episodes share it.
        While other episodes compute, they delay the limit of a call, each by at most the length of that limit."""
        self.code, self._on_gone, self._num_sharing = code, on_gone, num_sharing
        self.num_episodes = 0
        """Episodes that have a place in it; its pool counts them."""
        self.is_private = False
        """Whether its pool keeps it for one episode."""
        self.gone = asyncio.Event()
        self._mark = GUARD.new_mark()
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._busy_s = 0.0
        """The computing time of its calls, as last reported."""
        environment = {**ENVIRONMENT, **_without_proxy(), MARK_VARIABLE: self._mark, "PYTHONHASHSEED": "0"}
        super().__init__(
            self._take,
            self._sweep,
            name="the process of the environment",
            output=BoundedOutput(code.name, self),
            command=(code.interpreter or sys.executable, "-c", _BOOT, str(_ROOT), str(code.memory_bytes)),
            environment=environment,
            without=_NOT_FOR_OTHERS if code.interpreter else (),
        )

    async def start(self) -> None:
        """Starts the process and imports the code. Raises `CallFailed` (cannot_load) and `ProcessLost`."""
        try:
            await super().start()
        except OSError as error:
            self.why_ended = f"{self.program} cannot be started: {error.strerror}"
            self._end()
            raise CallFailed("cannot_load", self.why_ended) from None
        if self.is_lost:  # `kill` came first, and found no process.
            super().kill(self.why_killed)
        await self.call("load", timeout_s=LOAD_TIMEOUT_S, code=self.code.message(), max_chars=self.code.max_chars)

    async def call(self, name: str, *, timeout_s: float, logs_error: bool = True, **arguments: Any) -> Any:
        """Returns the answer to a call. The clock starts when the process begins the call, and stops while other calls
        compute. With `logs_error`, tracebacks of the code go to the log.

        Raises `CallFailed` and `ProcessLost`. If the caller is canceled, the call and its clock continue.
        """
        if self.is_lost:
            raise ProcessLost(self.why_killed or self.why_ended, in_call=False)
        number = next(self._numbers)
        done = asyncio.get_running_loop().create_future()
        call = self._calls[number] = _Call(name, timeout_s, (self._num_sharing - 1) * timeout_s, done, logs_error)
        limits = {"timeout_s": timeout_s, "max_others_s": call.max_others_s}
        self.send({"id": number, "call": name, **limits, **arguments})
        self._watch()
        return await call.done

    def kill(self, why: str) -> None:
        """Ends the process and its descendants. Calls in flight raise `ProcessLost`."""
        if not self.is_lost:
            super().kill(why)

    def _take(self, message: Message) -> None:
        self._busy_s = message["busy_s"]
        call = self._calls.get(message.get("id", -1))
        if call is None:
            return
        if message["event"] == "began":
            call.began_s, call.busy_before_s = asyncio.get_running_loop().time(), self._busy_s
            self._check(message["id"])
        else:
            del self._calls[message["id"]]
            if error := message.get("error"):
                if error["traceback"] and call.logs_error:
                    log_raised(self.code.name, error["traceback"])
                call.end(error=CallFailed(error["kind"], error["detail"], error["traceback"]))
            else:
                call.end(message["value"])
        self._watch()

    def _watch(self) -> None:
        """Ends the process if it takes no calls, because other work in it hangs."""
        self.end_deadline()
        if self._calls and not any(call.has_begun for call in self._calls.values()):
            self.set_deadline(_BEGIN_TIMEOUT_S, "the process of the environment hung")

    def _check(self, number: int) -> None:
        """Ends the process when a call has no time left."""
        call, loop = self._calls[number], asyncio.get_running_loop()
        left_s = call.left_s(loop.time(), self._busy_s)
        if left_s > 0:
            call.deadline = loop.call_later(left_s, self._check, number)
            return
        why = f"{call.name} took longer than {call.timeout_s:g} s"
        if sum(each.has_begun for each in self._calls.values()) == 1:
            del self._calls[number]
            call.end(error=CallFailed("late", why))
        # Any of several calls may block the others. The blocking call will hang again when it is alone.
        extra = {"environment": self.code.name, "pid": self.pid, "call": call.name}
        _log.warning("environment process killed", extra=extra)
        self.kill(f"{why}, in this episode or another episode of the same process")

    def _sweep(self) -> None:
        for call in self._calls.values():
            call.end(error=ProcessLost(self.why_ended, in_call=call.has_begun))
        self._calls.clear()
        self._sweeping = asyncio.get_running_loop().run_in_executor(None, end_descendants, self._mark)
        self._sweeping.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        self.gone.set()
        self._on_gone(self)
