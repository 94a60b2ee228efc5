"""The thread of commands, with commands that need no torch."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner.ranks.process_group import Command
from services.learner.torch_thread import TorchThread
from shoal.errors import Internal


def test_a_thread_that_dies_answers_every_caller_that_still_waits() -> None:
    group = SimpleNamespace(send_command=lambda command, body=b"": None)
    commands: Any = SimpleNamespace(process_group=group)
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
    assert deaths == ["the learner cannot continue: RuntimeError: a peer is gone"]
    assert thread.num_open == 0
