"""How the learner's service follows the other ranks, with commands that need no torch."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from services.learner.ranks import beats
from services.learner.service import LearnerService
from tests.support.waiting import eventually


class Ranks:
    """A process group whose rank 1 beats until it is stopped."""

    is_stopped = False
    num_looks = 0

    def last_beats(self) -> dict[int, bytes]:
        self.num_looks += not self.is_stopped
        return {1: str(self.num_looks).encode()}

    def send_command(self, command: Any, body: bytes = b"") -> None: ...

    def leave(self) -> None: ...


async def test_a_rank_that_stands_still_ends_the_learner_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "BEAT_S", 0.001)
    ranks, failures = Ranks(), []
    commands: Any = SimpleNamespace(process_group=ranks, release_cache=lambda: None)
    service = LearnerService(lambda: commands, lambda: "127.0.0.1", num_ranks=2)
    monkeypatch.setattr(service, "fail", failures.append)
    watching = asyncio.create_task(service.watch_beats())
    await eventually(lambda: ranks.num_looks > 100)
    assert not failures, failures
    ranks.is_stopped = True
    await asyncio.wait_for(watching, 60)
    assert len(failures) == 1 and "rank 1 " in failures[0] and "60 s" in failures[0], failures
    await service.close()
