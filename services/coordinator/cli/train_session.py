"""A running `shoal train`: its processes, progress, and signals."""

import asyncio
import contextlib
import secrets
import shlex
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.progress import ProgressView
from services.coordinator.client import CALL_TIMEOUT_S, START_TIMEOUT_S, coordinator, follow, patiently
from services.coordinator.launcher.checks import reserve_port
from services.coordinator.launcher.local_run import LocalRun
from services.coordinator.launcher.logged_process import adopt_orphans, kill_descendants
from services.coordinator.launcher.plan import LOOPBACK, ProcessPlan, plan_coordinator, plan_workers
from services.coordinator.launcher.run_tokens import RunTokens
from services.coordinator.launcher.supervisor import ProcessDied, Supervisor
from services.coordinator.store.run_record import TRAIN_NAME
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

ResultT = TypeVar("ResultT")

COORDINATOR_START_TIMEOUT_S = 120.0
START_POLL_S = 0.05
STOP_GRACE_S = 600.0
"""Time for the current step and a checkpoint."""
SAME_SIGNAL_S = 0.5
"""Signals within this time count as one: tools that end a process often signal both the process and its group."""
_DEATH_NOTICE_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TrainSession:
    """Starts the processes of a run, follows the run, and always ends every process."""

    def __init__(self, run: LocalRun, view: ProgressView, *, private: bool = False) -> None:
        """With `private`, tokens in the run's folder keep out other users of this machine."""
        self._run = run
        self._tokens = RunTokens(run.folder / "tokens") if private else None
        self._view = view
        self._supervisor = Supervisor(run.folder / "logs", lambda text: view.write(text, "process"))
        self._stub: CoordinatorServiceAsyncStub | None = None
        self._name = f"{TRAIN_NAME}{secrets.token_hex(4)}"
        """The coordinator's name. With this name, a restarted coordinator continues no other run."""
        self._port: socket.socket | None = None
        """Keeps the coordinator's port from other processes."""
        self._is_accepted = False
        self._furthest_step = 0
        self._joined: set[str] = set()
        """Kinds of worker that have joined since the last new step."""
        self._checking: set[asyncio.Task[None]] = set()
        """Tasks that check workers without a lease."""
        self._signals: list[signal.Signals] = []
        self._last_signal_at = -SAME_SIGNAL_S
        self._signaled = asyncio.Event()  # It is replaced at every signal.

    def train(self) -> ExitCode:
        """Trains to the end. Raises `ShoalError` when the run cannot begin, fails, or loses a process."""
        adopt_orphans()
        try:
            return asyncio.run(self._train())
        finally:
            self._supervisor.kill()
            kill_descendants()
            if self._port is not None:
                self._port.close()
            if self._tokens:
                self._tokens.remove()

    async def _train(self) -> ExitCode:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # The process was started by nohup.
            loop.add_signal_handler(number, self._on_signal, number)
        driving = loop.create_task(self._drive())
        signaled = loop.create_task(self._wait_for_signals(1))
        try:
            await asyncio.wait({driving, signaled}, return_when=asyncio.FIRST_COMPLETED)
            return driving.result() if driving.done() else await self._interrupt(driving)
        finally:
            for task in (driving, signaled):
                task.cancel()
            await self._end_processes()

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if now - self._last_signal_at < SAME_SIGNAL_S:
            return
        self._last_signal_at = now
        self._signals.append(number)
        self._signaled.set()
        self._signaled = asyncio.Event()

    async def _wait_for_signals(self, count: int) -> None:
        while len(self._signals) < count:
            await self._signaled.wait()

    async def _interrupt(self, driving: "asyncio.Task[ExitCode]") -> ExitCode:
        """Stops the run with a checkpoint. Another signal ends everything at once."""
        code = ExitCode.TERMINATED if self._signals[0] == signal.SIGTERM else ExitCode.INTERRUPTED
        if not self._is_accepted or self._stub is None:
            self._view.write("interrupted before the run began", "notice")
            return code
        first = self._signals[0]
        another = "Ctrl-C again" if first == signal.SIGINT else f"another {first.name}"
        self._view.write(f"{first.name}: stopping with a checkpoint; {another} ends everything at once", "notice")
        second_signal = asyncio.create_task(self._wait_for_signals(2))
        stopping = asyncio.create_task(self._request_stop(self._stub))
        try:
            await asyncio.wait({driving, second_signal}, return_when=asyncio.FIRST_COMPLETED)
            if driving.done():
                driving.result()
            else:
                self._view.write("ending everything at once", "notice")
                self._supervisor.kill()
            self._view.write(self._run.how_to_resume(), "notice")
            return code
        finally:
            for task in (second_signal, stopping):
                task.cancel()

    async def _request_stop(self, stub: "CoordinatorServiceAsyncStub") -> None:
        request = pb.StopRunRequest(run_id=self._run.request.run_id, mode=pb.STOP_MODE_NOW)
        with contextlib.suppress(ShoalError):  # The run may have ended in the meantime.
            await patiently(lambda: stub.StopRun(request, timeout=CALL_TIMEOUT_S))

    async def _end_processes(self) -> None:
        """Ends all processes. Another signal shortens the grace period of the processes."""
        ending = asyncio.create_task(self._supervisor.end())
        next_signal = asyncio.create_task(self._wait_for_signals(len(self._signals) + 1))
        await asyncio.wait({ending, next_signal}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, next_signal):
            task.cancel()
        await asyncio.gather(ending, next_signal, return_exceptions=True)

    async def _drive(self) -> ExitCode:
        """Starts the processes and follows the run to its end."""
        address = await self._start_coordinator()
        credentials = self._tokens.credentials() if self._tokens else Credentials()
        async with coordinator(address, credentials) as stub:
            self._stub = stub
            self._view.write("loading tokenizer and data")
            await self._while_processes_live(self._start_run(stub))
            self._is_accepted = True
            again = plan_coordinator(address, name=self._name, data_dir=self._run.data_dir)
            self._supervisor.replan(self._with_tokens(again))
            self._view.write(f"run {self._run.request.run_id} is accepted; control it from another terminal with:")
            if self._tokens:
                self._view.write(f"    export SHOAL_TOKEN_FILE={shlex.quote(str(self._tokens.file_of(Role.OPERATOR)))}")
            self._view.write(f"    shoal run status --coordinator {address}     # or pause, resume, stop")
            self._start_workers(address)
            asking = asyncio.create_task(self._supervisor.keep_answering(address))
            try:
                run = await self._while_processes_live(self._follow(stub))
            finally:
                asking.cancel()
        if run.state == pb.RUN_STATE_FAILED:
            logs = f"the run failed: {run.message}\nlogs: {self._run.folder / 'logs'}"
            raise Internal(logs if "--resume" in run.message else f"{logs}\n{self._run.how_to_resume()}")
        self._view.summarize(run)
        return ExitCode.OK

    async def _start_coordinator(self) -> str:
        """Starts the coordinator, and returns its address. The port stays reserved during restarts."""
        self._port = reserve_port(self._run.config.launch.coordinator_port, "launch.coordinator_port", LOOPBACK)
        listen = f"{LOOPBACK}:{self._port.getsockname()[1]}"
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            port_file = Path(folder) / "address"
            plan = plan_coordinator(listen, name=self._name, data_dir=self._run.data_dir, port_file=port_file)
            self._supervisor.start(self._with_tokens(plan))
            address = await self._while_processes_live(_until_written(port_file))
        self._view.write(f"the coordinator serves at {address}")
        return address

    async def _start_run(self, stub: "CoordinatorServiceAsyncStub") -> None:
        await stub.StartRun(self._run.request, timeout=START_TIMEOUT_S)

    def _start_workers(self, address: str) -> None:
        plans = plan_workers(self._run.config, coordinator=address, data_dir=self._run.data_dir, gpus=self._run.gpus)
        for plan in plans:
            self._supervisor.start(self._with_tokens(plan))
        names = ", ".join(plan.name for plan in plans)
        self._view.write(f"started {names}; logs: {self._run.folder / 'logs'}")

    def _with_tokens(self, plan: ProcessPlan) -> ProcessPlan:
        return self._tokens.given_to(plan) if self._tokens else plan

    async def _follow(self, stub: "CoordinatorServiceAsyncStub") -> pb.Run:
        """Shows the run's events until it ends, and returns its final state."""
        run_id = self._run.request.run_id
        async for event in follow(stub, run_id):
            if event.sequence > self._run.last_past_event:
                self._view.show(event)
                self._supervise(event)
            else:
                self._view.remember(event)
        request = pb.GetRunRequest(run_id=run_id)
        return (await patiently(lambda: stub.GetRun(request, timeout=CALL_TIMEOUT_S))).run

    def _supervise(self, event: pb.RunEvent) -> None:
        """Lets the supervisor kill a lost worker that hangs, and reset its count of restarts after a new step."""
        attributes = json_format.MessageToDict(event.attributes)
        if event.kind == "worker_lost":
            checking = asyncio.create_task(self._supervisor.end_hanging(attributes["address"]))
            self._checking.add(checking)
            checking.add_done_callback(self._checking.discard)
        elif event.kind == "worker_joined":
            self._joined.add(attributes["worker_kind"].partition(" ")[0])
        elif event.kind == "step" and attributes["step"] > self._furthest_step:
            self._furthest_step = attributes["step"]
            self._supervisor.forgive({"coordinator", *self._joined})
            self._joined.clear()

    async def _while_processes_live(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Returns the result of `work`. Raises `ProcessDied` when a process that the run needs ends."""
        working = asyncio.create_task(work)
        guarding = asyncio.create_task(self._supervisor.watch())
        try:
            await asyncio.wait({working, guarding}, return_when=asyncio.FIRST_COMPLETED)
            if not guarding.done() and _may_be_due_to_a_death(working):
                # The coordinator may have noticed the death first, but the supervisor's error names the log.
                await asyncio.wait({guarding}, timeout=_DEATH_NOTICE_S)
            if not guarding.done():
                return working.result()
            died = guarding.exception()
            if isinstance(died, ProcessDied) and died.kind != "coordinator" and self._is_accepted:
                self._view.write(f"{died.message.partition(chr(10))[0]}; stopping the run", "error")
                if self._stub is not None:
                    await self._request_stop(self._stub)
                await asyncio.wait({working}, timeout=STOP_GRACE_S)
            if isinstance(died, ProcessDied) and self._is_accepted:
                raise Internal(f"{died.message}\n{self._run.how_to_resume()}", reason=died.reason) from died
            assert died is not None
            raise died
        finally:
            for task in (working, guarding):
                task.cancel()
            await asyncio.gather(working, guarding, return_exceptions=True)


def _may_be_due_to_a_death(working: "asyncio.Task[Any]") -> bool:
    """Whether the death of a process could be the cause of the work's end."""
    if working.cancelled():
        return False
    if (error := working.exception()) is not None:
        return isinstance(error, Unavailable)
    result = working.result()
    return isinstance(result, pb.Run) and result.state == pb.RUN_STATE_FAILED


async def _until_written(path: Path) -> str:
    """Waits for a file that a starting process writes, and returns its text."""
    for _ in range(round(COORDINATOR_START_TIMEOUT_S / START_POLL_S)):
        if text := _text_of(path):
            return text
        await asyncio.sleep(START_POLL_S)
    raise Unavailable(f"the coordinator did not start within {COORDINATOR_START_TIMEOUT_S:.0f} s: try again")


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
