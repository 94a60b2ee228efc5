"""A process that the service has started, seen from the service."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from services.reward.process.frames import FrameBuffer, Message, encode_frame

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables of a process besides the service's own. A verifier needs one thread, and many share the machine."""


class Output(Protocol):
    """Takes what a process prints."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""

    def end(self) -> None:
        """Takes notice that nothing follows."""


class ChildProcess(asyncio.SubprocessProtocol):
    """Starts a process, sends it messages, reports its messages and its end, and kills it past its deadline.

    The process is started by exec, not fork, so that it inherits nothing of the service's gRPC. It leads a process
    group, which ends with it. Belongs to one event loop.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_exit: Callable[[], None],
        *,
        name: str,
        on_deadline: Callable[[str], None] | None = None,
        output: Output | None = None,
        command: Sequence[str],
        environment: Mapping[str, str] = ENVIRONMENT,
        without: Sequence[str] = (),
    ) -> None:
        """Runs `command` with the pid of this process as its last argument. The process gets the service's environment
        variables, except `without`, and `environment`. `output` gets its standard error, by default the service's own.
        After a deadline `on_deadline` is called with the reason, and must kill the process, as the default does."""
        self._name = name
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_deadline = on_deadline or self.kill
        self._output = output
        self._command = (*command, str(os.getpid()))
        kept = {name: value for name, value in os.environ.items() if name not in without}
        self._environment = {**kept, **environment}
        self._frames = FrameBuffer()
        self._transport: asyncio.SubprocessTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.pid = 0
        self.is_ready = False
        """Whether it has said that it takes work."""
        self.settled = asyncio.Event()
        """Set once it is ready or has ended."""
        self.why_killed = ""
        """Why it was killed; empty if it was not."""
        self.why_ended = ""
        """Why it has ended; empty until then."""

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, or is about to."""
        return bool(self.why_killed or self.why_ended)

    @property
    def takes_work(self) -> bool:
        return self.is_ready and not self.is_lost

    @property
    def program(self) -> str:
        return self._command[0]

    async def start(self) -> None:
        """Starts the process. Raises `OSError`. Its message "ready" means that it takes work."""
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if self._output else None,
            env=self._environment,
            process_group=0,
        )

    def send(self, message: Message) -> None:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(encode_frame(message))

    def set_deadline(self, seconds: float, why: str) -> None:
        """Calls `on_deadline` after some time. Replaces an earlier deadline."""
        self.end_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._on_deadline, why)

    def end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def kill(self, why: str) -> None:
        """Kills the process and the processes that it has started; `on_exit` follows."""
        self.why_killed = why
        self._kill()

    def _kill(self) -> None:
        if self._transport is not None and self._transport.get_returncode() is None:
            self._kill_group()
            self._transport.kill()  # It may have left its group.

    def interrupt(self) -> None:
        """Sends SIGUSR1 to the process."""
        if self._transport is not None and self._transport.get_returncode() is None:
            self._transport.send_signal(signal.SIGUSR1)

    def pause_output(self) -> None:
        """Stops reading standard error until `resume_output`. A process that fills the pipe waits for it as well."""
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
                    if self.why_ended:
                        return
                    if message.get("event") == "ready":
                        self.is_ready = True
                        self.settled.set()
                    self._on_message(message)
            except ValueError:
                self._kill()  # It wrote something else to the pipe of its answers: what follows has no meaning.
        elif self._output:
            self._output.feed(data)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def process_exited(self) -> None:
        assert self._transport is not None
        self._kill_group()  # Processes that it has left behind.
        code = self._transport.get_returncode()
        self._transport.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self.why_ended = self.why_killed or f"{self._name} died ({how})"
        self.end_deadline()
        if self._output:
            self._output.end()
        self.settled.set()
        self._on_exit()

    def pipe_connection_lost(self, fd: int, exc: Any) -> None:
        """Does nothing: `process_exited` follows."""
