"""The queue of commands, with commands that need no torch."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner.ranks import Command
from services.learner.torch_thread import TorchThread
from shoal.errors import Internal


def test_a_thread_that_dies_answers_everyone_who_still_waits() -> None:
    rank: Any = SimpleNamespace(ranks=SimpleNamespace(send=lambda command, body=b"": None))
    deaths: list[str] = []
    thread = TorchThread(lambda: rank, deaths.append)
    breaks = threading.Event()

    def fail(rank: Any) -> None:
        breaks.wait()
        raise RuntimeError("a peer is gone")

    running = thread.submit(Command.TRAIN_STEP, b"", fail)
    given_up = thread.submit(Command.COMPUTE_LOGPROBS, b"", lambda rank: None)
    waiting = thread.submit(Command.SAVE_CHECKPOINT, b"", lambda rank: None)
    thread.start()
    assert given_up.cancel()
    breaks.set()
    for future in (running, waiting):
        with pytest.raises(Internal, match="a peer is gone"):
            future.result(timeout=10)
    assert thread.close(10)
    assert deaths == ["the learner cannot go on: RuntimeError: a peer is gone"]
    assert thread.num_open == 0
