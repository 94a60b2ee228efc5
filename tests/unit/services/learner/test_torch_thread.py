"""The thread of commands, with commands that need no torch."""

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner.ranks.process_group import Command
from services.learner.torch_thread import TorchThread
from shoal.errors import FailedPrecondition, Internal


def commands_of(
    send_command: Callable[..., None] = lambda command, body=b"": None, release_cache: Callable[[], None] = lambda: None
) -> Any:
    group = SimpleNamespace(send_command=send_command, leave=lambda: None)
    return SimpleNamespace(process_group=group, release_cache=release_cache)


def test_a_thread_that_dies_answers_every_caller_that_still_waits() -> None:
    commands = commands_of()
    deaths: list[str] = []
    thread = TorchThread(lambda: commands, deaths.append)
    breaks = threading.Event()

    def fail(commands: Any) -> None:
        breaks.wait()
        raise RuntimeError("a peer is gone")

    running = thread.submit(Command.TRAIN_STEP, b"", fail)
    canceled = thread.submit(Command.COMPUTE_LOGPROBS, b"", lambda commands: None)
    waiting = thread.submit(Command.SAVE_CHECKPOINT, b"", lambda commands: None)
    thread.start()
    assert canceled.cancel()
    breaks.set()
    for future in (running, waiting):
        with pytest.raises(Internal, match="a peer is gone"):
            future.result(timeout=60)
    assert thread.close(10)
    assert len(deaths) == 1 and deaths[0].endswith(": RuntimeError: a peer is gone"), deaths
    assert thread.num_open == 0


def test_a_caller_learns_of_the_death_once_its_cause_is_known() -> None:
    commands = commands_of()
    deaths: list[str] = []

    def explain(error: str) -> str:
        assert not running.done(), "the caller would find the learner READY"
        return f"learner rank 1 was killed by SIGKILL, not {error}"

    def fail(commands: Any) -> None:
        raise RuntimeError("a peer is gone")

    thread = TorchThread(lambda: commands, deaths.append, explain)
    running = thread.submit(Command.TRAIN_STEP, b"", fail)
    running.add_done_callback(lambda _: deaths.append("answered"))
    thread.start()
    with pytest.raises(Internal, match=r"rank 1 was killed by SIGKILL, .*a peer is gone"):
        running.result(timeout=60)
    assert thread.close(10) and len(deaths) == 2 and deaths[1] == "answered", deaths


def test_a_command_that_hangs_over_its_deadline_ends_the_learner() -> None:
    commands = commands_of()
    deaths: queue.Queue[str] = queue.Queue()
    thread = TorchThread(lambda: commands, deaths.put)
    ends = threading.Event()
    in_time = thread.submit(Command.SAVE_CHECKPOINT, b"", lambda commands: None, within_s=3600)
    unbounded = thread.submit(Command.EXPORT_MODEL, b"", lambda commands: None)
    hangs = thread.submit(Command.TRAIN_STEP, b"", lambda commands: ends.wait(), within_s=0.1)
    too_late = thread.submit(Command.COMPUTE_LOGPROBS, b"", lambda commands: None, within_s=0.0)
    thread.start()
    death = deaths.get(timeout=60)
    assert "TRAIN_STEP" in death, death
    assert in_time.done() and unbounded.done() and not hangs.done()
    ends.set()
    assert thread.close(60)
    assert too_late.done() and deaths.empty(), "a command that began after its deadline does not hang"


def test_memory_is_released_before_a_caller_learns_that_a_command_has_ended() -> None:
    order: list[str] = []
    commands = commands_of(release_cache=lambda: order.append("released"))
    thread = TorchThread(lambda: commands, order.append)

    def fail(commands: Any) -> None:
        raise FailedPrecondition("a generator is gone")

    for name, work in (("step", lambda commands: None), ("publish", fail)):
        future = thread.submit(Command.TRAIN_STEP, b"", work)
        future.add_done_callback(lambda _, name=name: order.append(f"{name} ended"))
    thread.start()
    assert thread.close(60)
    assert order == ["released", "step ended", "released", "publish ended"]


def test_a_caller_learns_of_its_error_also_when_memory_cannot_be_released() -> None:
    def release_cache() -> None:
        raise RuntimeError("CUDA is gone")

    def fail(commands: Any) -> None:
        raise FailedPrecondition("a generator is gone")

    commands = commands_of(release_cache=release_cache)
    deaths: list[str] = []
    thread = TorchThread(lambda: commands, deaths.append)
    future = thread.submit(Command.TRAIN_STEP, b"", fail)
    thread.start()
    with pytest.raises(FailedPrecondition, match="a generator is gone"):
        future.result(timeout=60)
    assert thread.close(60)
    assert len(deaths) == 1 and deaths[0].endswith(": RuntimeError: CUDA is gone"), deaths


@pytest.mark.parametrize(("restarts", "farewell"), [(False, Command.STOP), (True, Command.RESTART)])
def test_the_other_ranks_learn_whether_they_are_started_again(restarts: bool, farewell: Command) -> None:
    sent: list[Command] = []
    commands = commands_of(lambda command, body=b"": sent.append(command))
    thread = TorchThread(lambda: commands, lambda reason: None)
    thread.start()
    assert thread.close(60, restarts=restarts)
    assert sent == [farewell]


def test_a_step_without_enough_memory_says_which_fields_to_change() -> None:
    def fail(commands: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    deaths: list[str] = []
    thread = TorchThread(lambda: commands_of(), deaths.append)
    running = thread.submit(Command.TRAIN_STEP, b"", fail)
    thread.start()
    with pytest.raises(Internal, match=r"2\.00 GiB\..*learner\.pack_tokens"):
        running.result(timeout=60)
    assert thread.close(10) and len(deaths) == 1, deaths
