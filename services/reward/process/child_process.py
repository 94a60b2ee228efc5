"""A process beside the service, of the pool or of a reward model, seen from its parent."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.reward.process.frames import FrameBuffer, Message, encode_frame

# A verifier needs one thread, and many processes share the machine.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment variables of such a process, in addition to those of the service."""


class PoolProcess(asyncio.SubprocessProtocol):
    """Starts a process, sends it one job at a time and reports its messages and its end.

    The process is started by exec, not fork, so that it inherits nothing of the service's gRPC. It leads a process
    group, which ends with it.
    """

    def __init__(
        self,
        on_message: Callable[["PoolProcess", Message], None],
        on_exit: Callable[["PoolProcess", str], None],
        *,
        on_output: Callable[["PoolProcess", bytes], None] | None = None,
        module: str = "services.reward.pool.worker",
        command: Sequence[str] = (),
        environment: Mapping[str, str] = ENVIRONMENT,
        without: Sequence[str] = (),
    ) -> None:
        """`module` is run, or in its place `command`; both get the pid of this process as the last argument.

        It gets `environment` in addition to the service's own variables, `without` some of them. `on_output` gets its
        standard error; without it that is the service's.
        """
        self._on_message = on_message
        self._on_output = on_output
        self._on_exit = on_exit
        self._command = (*(command or (sys.executable, "-m", module)), str(os.getpid()))
        kept = {name: value for name, value in os.environ.items() if name not in without}
        self._environment = {**kept, **environment}
        self._frames = FrameBuffer()
        self._transport: asyncio.SubprocessTransport | None = None
        self.pid = 0

    @property
    def program(self) -> str:
        """The executable that it runs."""
        return self._command[0]

    async def start(self) -> None:
        """Starts the process; its first message, "ready", means that it takes jobs."""
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if self._on_output else None,
            env=self._environment,
            process_group=0,
        )

    def send(self, message: Message) -> None:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(encode_frame(message))

    def kill(self) -> None:
        """Kills the process and the processes that it has started; `on_exit` follows."""
        if self._transport is not None and self._transport.get_returncode() is None:
            self._kill_group()
            self._transport.kill()  # It may have left its group.

    def interrupt(self) -> None:
        """Sends SIGUSR1 to the process."""
        if self._transport is not None and self._transport.get_returncode() is None:
            self._transport.send_signal(signal.SIGUSR1)

    def pause_output(self) -> None:
        """Lets standard error wait in the pipe, until `resume_output`: who writes more than it holds waits as well."""
        self._output_pipe().pause_reading()

    def resume_output(self) -> None:
        """Reads standard error again."""
        pipe = self._output_pipe()
        if not pipe.is_closing():
            pipe.resume_reading()

    def _output_pipe(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(2)
        assert isinstance(pipe, asyncio.ReadTransport)
        return pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        self.pid = transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            try:
                for message in self._frames.feed(data):
                    self._on_message(self, message)
            except ValueError:
                self.kill()  # It wrote something else to the pipe of its answers: what follows has no meaning.
        elif self._on_output:
            self._on_output(self, data)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def process_exited(self) -> None:
        assert self._transport is not None
        self._kill_group()  # Processes that it has left behind.
        code = self._transport.get_returncode()
        self._transport.close()
        self._on_exit(self, f"signal {-code}" if code is not None and code < 0 else f"exit code {code}")

    def pipe_connection_lost(self, fd: int, exc: Any) -> None:
        """Does nothing: `process_exited` follows."""
