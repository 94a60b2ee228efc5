"""Supervision of a run's processes: start, restart after a failure, end."""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.coordinator.launcher.logged_process import LoggedProcess
from services.coordinator.launcher.plan import ProcessPlan
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, Internal, ShoalError, Unavailable
from shoal.rpc.channel import connect

POLL_S = 0.2
END_POLL_S = 0.05
GRACE_S = 20.0
"""Longest time for processes to end by themselves."""
MAX_RESTARTS = 5
"""Maximum number of restarts of a process. Its count is reset when it has lived for RESET_AFTER_S, and by `forgive`."""
RESET_AFTER_S = 300.0
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0
ANSWER_S = 10.0
"""Longest time for the answer of a process that may hang."""
ASK_EVERY_S = 5.0
NUM_ASKED = 3
"""Unanswered questions in a row after which the coordinator, which has no lease, is killed."""
# Exit codes after which a restart would end the same way: bad options, a missing package.
_FINAL_EXIT_CODES = (2, 3)


class ProcessDied(Internal):
    """A process that the run needs has ended."""

    def __init__(self, child: LoggedProcess) -> None:
        last_line = child.last_log_line()
        super().__init__(
            f"the {child.plan.kind} process ended: {child.describe_exit()}"
            + (f"\n  the last line of its log: {last_line}" if last_line else "")
            + f"\n  its log: {child.log_file}",
            reason=ErrorReason.PROCESS_DIED,
        )
        self.kind = child.plan.kind


@dataclass
class _Supervised:
    child: LoggedProcess
    plan: ProcessPlan
    """The plan for the next start of the process."""
    num_restarts: int = 0
    restart_at: float | None = None
    """Time of the next start; None while the process runs, and if it is no longer restarted."""
    is_abandoned: bool = False


class Supervisor:
    """Starts the processes of a run, restarts processes that may restart, and ends all of them.

    Use it from the main thread: the kernel ends the processes when the thread that started them ends.
    """

    def __init__(self, log_folder: Path, report: Callable[[str], None]) -> None:
        """`report` gets one line for each death and restart of a process."""
        self._log_folder = log_folder
        self._report = report
        self._processes: dict[str, _Supervised] = {}

    def start(self, plan: ProcessPlan) -> LoggedProcess:
        """Starts a process; its log is `<log_folder>/<name>.log`."""
        self._log_folder.mkdir(parents=True, exist_ok=True)
        child = LoggedProcess(plan, self._log_folder / f"{plan.name}.log")
        self._processes[plan.name] = _Supervised(child, plan)
        return child

    def replan(self, plan: ProcessPlan) -> None:
        """Sets the plan for the next starts of a running process."""
        self._processes[plan.name].plan = plan

    def forgive(self, kinds: Collection[str]) -> None:
        """Resets the count of restarts for processes of some kinds, since a new step shows that they work."""
        for process in self._processes.values():
            if process.child.plan.kind in kinds and process.restart_at is None:
                process.num_restarts = 0

    async def end_hanging(self, address: str) -> None:
        """Kills the process at the address of a lost worker, unless the process answers. `watch` restarts a killed
        process. A process that answers registers again by itself."""
        await self._end_silent(address, "its lease has expired, and the process does not answer", num_asked=1)

    async def keep_answering(self, address: str) -> None:
        """Asks the process that listens at an address every `ASK_EVERY_S`, and kills the process when it hangs.

        `watch` restarts the process. A starting process that does not yet listen is not killed.
        """
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            if not await _answers(address):
                await self._end_silent(address, "it does not answer", num_asked=NUM_ASKED - 1)

    async def _end_silent(self, address: str, because: str, *, num_asked: int) -> None:
        for process in self._processes.values():
            if not (child := process.child).listens_at(address):
                continue
            for _ in range(num_asked):
                if await _answers(address):
                    return
            if child is process.child and child.listens_at(address):
                self._report(f"{child.plan.name} hangs: {because}; it is killed")
                child.kill()

    async def watch(self) -> None:
        """Restarts processes that die. Raises `ProcessDied` for a process that may not restart, or that is the last of
        its kind and has no restarts left."""
        while True:
            for name in list(self._processes):
                self._check(self._processes[name])
            await asyncio.sleep(POLL_S)

    def _check(self, process: _Supervised) -> None:
        child, now = process.child, time.monotonic()
        if process.restart_at is not None:
            if now >= process.restart_at:
                process.restart_at = None
                process.child = LoggedProcess(process.plan, child.log_file)
                self._report(f"{child.plan.name} is restarted (pid {process.child.pid})")
            return
        status = child.exit_status()
        if status is None or process.is_abandoned:
            return
        child.kill()  # The descendants may outlive the process.
        if not process.plan.may_restart:
            raise ProcessDied(child)
        if now - child.started_at > RESET_AFTER_S:
            process.num_restarts = 0
        death = f"{child.plan.name} died ({child.describe_exit()}; {child.last_log_line() or 'nothing in its log'})"
        if status in _FINAL_EXIT_CODES or process.num_restarts >= MAX_RESTARTS:
            process.is_abandoned = True
            if self._is_last_of(child.plan.kind):
                raise ProcessDied(child)
            self._report(f"{death}; the process is not restarted, and the other processes continue")
            return
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2**process.num_restarts)
        process.num_restarts += 1
        process.restart_at = now + delay_s
        self._report(f"{death}; restart {process.num_restarts} of {MAX_RESTARTS} in {delay_s:.0f} s")

    def _is_last_of(self, kind: str) -> bool:
        return all(other.is_abandoned for other in self._processes.values() if other.child.plan.kind == kind)

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Sends SIGTERM to all processes, waits, and kills the rest. Cancellation kills at once."""
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
        """Kills all processes and their descendants, and reaps them."""
        for process in self._processes.values():
            process.child.kill()


async def _answers(address: str) -> bool:
    async with connect(address, "grpc.health.v1.Health") as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
        except (DeadlineExceeded, Unavailable):
            return False
        except ShoalError:
            return True
    return True
