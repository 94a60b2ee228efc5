"""The process that decides which tests pass: it gets one job, writes the verdict of each test to a pipe, and ends. The
program's process has neither the tests nor this pipe."""

import builtins
import contextlib
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from services.reward.sandbox.inside import seccomp
from services.reward.sandbox.inside.channel import Channel, Closed, Message, Unreadable
from services.reward.sandbox.inside.names import names_of
from services.reward.sandbox.inside.namespaces import WRITABLE
from services.reward.sandbox.inside.remote import CannotCross, Subject
from services.reward.sandbox.inside.subject import FUNCTIONS, OUTPUT, PROGRAM

_MAX_JOB_BYTES = 256 << 20
_MAX_VALUE_BYTES = 8 << 20
_MAX_DETAIL_CHARACTERS = 300
_OUTPUT_CHUNK_BYTES = 1 << 16
# A script that has closed its output has this long to end.
_EXIT_PATIENCE_S = 0.5
# A program that used less than this share of its time on the processor had to wait, or waited on its own. It is run
# once more, with this many times the time.
_STARVED, _MORE_PATIENCE = 0.5, 3
# Numbers as programs print them. With zeros in front, as in "0011", it might be a number or a text.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_DIGITS = re.compile(r"[0-9]+")


class _OutOfTime(BaseException):
    """The time is over. Not an Exception, so that no `except Exception` of a test catches it."""


class _Failed(Exception):
    """The test fails. The message says why, for people."""


class _CannotLoad(_Failed):
    """The program does not load, so no test passes."""


class _LoadsTooLong(_CannotLoad):
    """The program's own statements do not end."""


def main(jobs_fd: int, verdicts_fd: int, keeper: socket.socket) -> None:
    """Examines one program. `keeper` starts and ends the processes in which the program runs."""
    job = Channel(jobs_fd, verdicts_fd, max_bytes=_MAX_JOB_BYTES).receive()
    verdicts = Channel(jobs_fd, verdicts_fd, max_bytes=0)
    seccomp.confine()
    signal.signal(signal.SIGALRM, _run_out)
    kinds: dict[str, Callable[[Message, Any, _Keeper], None]]
    kinds = {FUNCTIONS: _examine_functions, PROGRAM: _examine_output, OUTPUT: _return_output}
    examine = kinds[job["kind"]]
    for test in job["tests"]:
        verdict = _examine(examine, job, test, keeper)
        verdicts.send(verdict)
        if verdict["event"] == "unfit" or verdict["rest_fails"]:
            return


def _examine(
    examine: Callable[[Message, Any, "_Keeper"], None], job: Message, test: Any, keeper: socket.socket
) -> Message:
    """Returns the verdict of one test. A program that ran out of time without using the processor gets more time."""
    for patience in (1, _MORE_PATIENCE):
        started = time.perf_counter()
        keeping = _Keeper(keeper, job["timeout_s"] * patience)
        passed, detail, rest_fails, is_late = False, "", False, False
        try:
            examine(job, test, keeping)
            passed = True
        except CannotCross as error:
            return {"event": "unfit", "detail": _shown(error)}
        except _Failed as error:
            detail, rest_fails, is_late = str(error), isinstance(error, _CannotLoad), isinstance(error, _LoadsTooLong)
        except (TimeoutError, _OutOfTime):
            detail, is_late = f"no result within {job['timeout_s'] * patience:g} s", True
        except (Closed, Unreadable) as error:
            detail = f"the program ended or sent no valid message: {error}"
        except BaseException as error:
            detail = f"{type(error).__name__}: {_shown(error)}"
        if not (is_late and keeping.cpu_s < _STARVED * job["timeout_s"]):
            break
    return {
        "event": "test",
        "passed": passed,
        "detail": detail[:_MAX_DETAIL_CHARACTERS],
        "seconds": time.perf_counter() - started,
        "rest_fails": rest_fails,
        "output": keeping.output,
    }


def _shown(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_DETAIL_CHARACTERS]
    except BaseException:
        return "(no text)"


def _run_out(*_: Any) -> None:
    raise _OutOfTime


class _Keeper:
    """A client of the first process: starts and ends processes in which the program runs."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self.deadline = time.monotonic() + timeout_s
        self.cpu_s = 0.0
        """The processor time of the processes that have ended."""
        self.output = ""
        """The output of a program that is run for its output."""
        connection.send(f"test {timeout_s}".encode())

    @contextlib.contextmanager
    def process(self, kind: str) -> Iterator[list[int]]:
        """Yields the file descriptors of a process: its channel and, for a script, its input and output."""
        self._connection.send(f"start {kind}".encode())
        _, descriptors, _, _ = socket.recv_fds(self._connection, 16, 3)
        # Tests read files that the program writes, and the program reads the tests' files.
        os.chdir(WRITABLE)
        try:
            yield descriptors
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            self.end(0.0)

    def end(self, patience_s: float) -> int | None:
        """Ends the process. Returns its exit status, or None if it had to be killed or is already gone."""
        # The folder goes away with the process.
        os.chdir("/")
        self._connection.send(f"end {patience_s}".encode())
        status, cpu_s = self._connection.recv(64).decode().split()
        self.cpu_s += float(cpu_s)
        return int(status) if status != "none" else None


def _examine_functions(job: Message, test: str, keeper: _Keeper) -> None:
    """Runs one test against a new process of the program. Raises unless the test passes."""
    with keeper.process(FUNCTIONS) as [descriptor]:
        signal.setitimer(signal.ITIMER_REAL, max(keeper.deadline - time.monotonic(), 0.001))
        subject = Subject(Channel(descriptor, descriptor, max_bytes=_MAX_VALUE_BYTES), keeper.deadline)
        try:
            subject.load(job["program"])
        except CannotCross:
            raise
        except TimeoutError:
            raise _LoadsTooLong("the program itself did not end in time") from None
        except (Closed, Unreadable) as error:
            raise _CannotLoad(f"the program ended its process or sent no valid message: {error}") from None
        except Exception as error:
            raise _CannotLoad(f"the program raised {type(error).__name__}: {_shown(error)}") from None
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise _CannotLoad(f"the program raised {type(error).__name__}") from None
        namespace: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
        # The other process has compiled the program, so it can be parsed here.
        namespace |= names_of(test, job["program"], subject, namespace.keys())
        exec(compile(test, "test", "exec", dont_inherit=True), namespace)
        # A test that catches every exception catches these too.
        if subject.failure is not None:
            raise subject.failure
        if time.monotonic() >= keeper.deadline:
            raise TimeoutError


def _examine_output(job: Message, test: Message, keeper: _Keeper) -> None:
    """Runs the program as a script on one input. Raises unless it writes the expected output and exits with 0."""
    wanted = test["output"]
    max_bytes = max(job["output_limit_bytes"], 2 * len(wanted.encode("utf-8", "surrogatepass")))
    output, status = _run_script(job, test, keeper, max_bytes)
    _check_status(status)
    signal.setitimer(signal.ITIMER_REAL, max(keeper.deadline - time.monotonic(), 0.1))
    try:
        if not same_output(output.decode("utf-8", "replace"), wanted):
            raise _Failed(f"wrong output: {output[:100].decode('utf-8', 'replace')!r}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _return_output(job: Message, test: Message, keeper: _Keeper) -> None:
    """Runs the program as a script on one input, for its output. Raises unless it exits with 0."""
    output, status = _run_script(job, test, keeper, job["output_limit_bytes"])
    keeper.output = output.decode("utf-8", "replace")
    _check_status(status)


def _check_status(status: int | None) -> None:
    if status != 0:
        raise _Failed("the program did not end" if status is None else f"the program ended with status {status}")


def _run_script(job: Message, test: Message, keeper: _Keeper, max_bytes: int) -> tuple[bytes, int | None]:
    """Runs the program on one input. Returns its output and its exit status (None if it did not end)."""
    given = test["input"].encode("utf-8", "surrogatepass")
    with keeper.process(PROGRAM) as [channel, to_program, from_program]:
        Channel(channel, channel, max_bytes=0).send({"program": job["program"]}, deadline=keeper.deadline)
        output = _converse(given, to_program, from_program, keeper.deadline, max_bytes)
        status = keeper.end(min(_EXIT_PATIENCE_S, max(keeper.deadline - time.monotonic(), 0.0)))
    return output, status


def _converse(given: bytes, to_program: int, from_program: int, deadline: float, max_bytes: int) -> bytes:
    """Writes the input while reading the output, until the output ends. Closes no descriptor."""
    os.set_blocking(to_program, False)
    os.set_blocking(from_program, False)
    rest, output = memoryview(given), bytearray()
    poll = select.poll()
    poll.register(from_program, select.POLLIN)
    poll.register(to_program, select.POLLOUT)
    is_writing = True
    while True:
        if is_writing and not rest:
            poll.unregister(to_program)
            # Close it, so that the program sees the end of its input. The descriptor's number stays in use.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, to_program)
            os.close(nothing)
            is_writing = False
        events = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if not events:
            raise TimeoutError
        if to_program in events and is_writing:
            try:
                rest = rest[os.write(to_program, rest[:_OUTPUT_CHUNK_BYTES]) :]
            except BlockingIOError:
                pass
            except OSError:
                # The program has closed its input, which is allowed.
                rest = memoryview(b"")
        if from_program in events:
            piece = os.read(from_program, _OUTPUT_CHUNK_BYTES)
            if not piece:
                return bytes(output)
            output += piece
            if len(output) > max_bytes:
                raise _Failed(f"more than {max_bytes} bytes of output")


def same_output(got: str, wanted: str) -> bool:
    """Compares two outputs line by line, ignoring white space around lines and outputs. Compares numbers by value."""
    got_lines, wanted_lines = _lines(got), _lines(wanted)
    return len(got_lines) == len(wanted_lines) and all(
        one == other or _same_numbers(one.split(), other.split())
        for one, other in zip(got_lines, wanted_lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(one: list[str], other: list[str]) -> bool:
    """Compares two lines of numbers, ignoring white space between them. Numbers with zeros in front are texts."""
    return len(one) == len(other) and all(_same_number(*pair) for pair in zip(one, other, strict=True))


def _same_number(one: str, other: str) -> bool:
    if one == other:
        return _NUMBER.fullmatch(one) is not None or _DIGITS.fullmatch(one) is not None
    is_pair = _NUMBER.fullmatch(one) is not None and _NUMBER.fullmatch(other) is not None
    return is_pair and Decimal(one) == Decimal(other)
