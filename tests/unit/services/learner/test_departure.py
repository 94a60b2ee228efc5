"""The departure of a learner, with commands that need no torch."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.learner import departure as module
from services.learner.departure import Departure
from services.learner.torch_thread import TorchThread
from shoal.v1 import worker_pb2
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec
from tests.support.loopback import NoProgram
from tests.support.waiting import eventually


class Ranks:
    """A process group whose other rank may be told to end."""

    leaving: str | None = None

    def leaving_rank(self) -> str | None:
        return self.leaving

    def send_command(self, command: Any, body: bytes = b"") -> None:
        pass

    def leave(self) -> None:
        pass


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
def torch(ranks: Ranks) -> Iterator[TorchThread]:
    commands: Any = SimpleNamespace(process_group=ranks, release_cache=lambda: None)
    thread = TorchThread(lambda: commands, lambda reason: None)
    thread.start()
    yield thread
    assert thread.close(60)


async def test_a_learner_without_a_step_to_save_leaves_at_once(torch: TorchThread) -> None:
    lifecycle = Lifecycle("the learner")
    await Departure(lifecycle, torch, grace_s=3600).drain()
    assert lifecycle.state == worker_pb2.WORKER_STATE_LEAVING


async def test_a_learner_restarts_after_its_checkpoint_when_another_rank_is_told_to_end(
    ranks: Ranks, torch: TorchThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.01)
    ends: list[str] = []
    lifecycle = Lifecycle("the learner", Reexec(NoProgram(), end=lambda: ends.append("restart")))
    departure = Departure(lifecycle, torch, grace_s=3600)
    departure.num_steps += 1
    watching = asyncio.create_task(departure.watch_ranks())
    ranks.leaving = "1"
    await eventually(lambda: lifecycle.state == worker_pb2.WORKER_STATE_LEAVING)
    assert not ends, "the step would be lost"
    departure.saved(departure.num_steps)
    await asyncio.wait_for(watching, 60)
    assert ends == ["restart"]
    await departure.drain()  # As the signal of the restart does; it does not wait any more.
