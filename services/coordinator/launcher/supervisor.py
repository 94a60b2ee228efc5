"""Keeps the processes of a run going, and ends every one of them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.launcher.plan import ProcessPlan
from services.coordinator.launcher.process import ChildProcess
from shoal.errors import Internal

POLL_S = 0.2
END_POLL_S = 0.05
GRACE_S = 20.0
"""Longest time that processes get to end by themselves."""
MAX_RESTARTS = 5
"""Restarts of one process; a process that has lived for a while begins to count anew."""
FORGIVEN_AFTER_S = 300.0
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
# Exit codes of a process that would only end the same way again: bad options, a package that is missing.
_HOPELESS_EXIT_CODES = (2, 3)


class ProcessDied(Internal):
    """A process ended that the run cannot go on without."""

    def __init__(self, child: ChildProcess) -> None:
        words = child.last_words()
        super().__init__(
            f"the {child.plan.kind} process ended: {child.describe_exit()}"
            + (f"\n  its last words: {words}" if words else "")
            + f"\n  its log: {child.log_file}",
            reason="PROCESS_DIED",
        )
        self.kind = child.plan.kind


@dataclass
class _Supervised:
    child: ChildProcess
    num_restarts: int = 0
    restart_at: float | None = None
    """When to start it again; None while it runs, and once it has been given up."""
    is_given_up: bool = False


class Supervisor:
    """Starts processes, starts again those that may, and ends them all.

    To be used from the main thread: the kernel ends the processes when the thread that started them ends.
    """

    def __init__(self, log_folder: Path, say: Callable[[str], None]) -> None:
        """`say` is told in one line whatever happens to a process."""
        self._log_folder = log_folder
        self._say = say
        self._processes: dict[str, _Supervised] = {}

    def start(self, plan: ProcessPlan) -> ChildProcess:
        """Starts a process; its log is `<log_folder>/<name>.log`."""
        self._log_folder.mkdir(parents=True, exist_ok=True)
        child = ChildProcess(plan, self._log_folder / f"{plan.name}.log")
        self._processes[plan.name] = _Supervised(child)
        return child

    async def watch(self) -> None:
        """Restarts processes that die and may; runs until one dies that may not.

        Raises `ProcessDied` for that one, or for the last of a kind that has been given up.
        """
        while True:
            for name in list(self._processes):
                self._look_after(self._processes[name])
            await asyncio.sleep(POLL_S)

    def _look_after(self, process: _Supervised) -> None:
        child, now = process.child, time.monotonic()
        if process.restart_at is not None:
            if now >= process.restart_at:
                process.restart_at = None
                process.child = ChildProcess(child.plan, child.log_file)
                self._say(f"{child.plan.name} is started again (pid {process.child.pid})")
            return
        status = child.exit_status()
        if status is None or process.is_given_up:
            return
        child.kill()  # What it started may outlive it.
        if not child.plan.may_restart:
            raise ProcessDied(child)
        if now - child.started_at > FORGIVEN_AFTER_S:
            process.num_restarts = 0
        what = f"{child.plan.name} died ({child.describe_exit()}; {child.last_words() or 'no last words'})"
        if status in _HOPELESS_EXIT_CODES or process.num_restarts >= MAX_RESTARTS:
            process.is_given_up = True
            if self._is_last_of(child.plan.kind):
                raise ProcessDied(child)
            self._say(f"{what}; it is not started again, the others go on without it")
            return
        delay_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**process.num_restarts)
        process.num_restarts += 1
        process.restart_at = now + delay_s
        self._say(f"{what}; restart {process.num_restarts} of {MAX_RESTARTS} in {delay_s:.0f} s")

    def _is_last_of(self, kind: str) -> bool:
        return all(other.is_given_up for other in self._processes.values() if other.child.plan.kind == kind)

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Asks all to end, waits, and kills what is left. Whoever cancels this gets the killing at once."""
        try:
            for process in self._processes.values():
                process.child.terminate()
            for _ in range(round(grace_s / END_POLL_S)):
                if all(process.child.exit_status() is not None for process in self._processes.values()):
                    break
                await asyncio.sleep(END_POLL_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kills all processes with all that they started, and reaps them."""
        for process in self._processes.values():
            process.child.kill()
