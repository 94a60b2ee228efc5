"""What a restore uses, and how it ends when the run stops in the middle of it."""

import asyncio
import threading
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.recovery import recover
from shoal.errors import DataLoss, NotFound
from shoal.rollout import WeightVersion


async def at_once(write: Any) -> Any:
    """Awaits a write on a disk that has room."""
    return await write()


async def test_a_stop_waits_for_the_ledger_that_is_being_restored() -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    ended: list[str] = []

    def restore_ledger(*arguments: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(60), "the test did not let the restore end"
        ended.append("restored")

    checkpoints = Mock(committed=lambda: ["step-00000002"], restore_ledger=restore_ledger)
    learner = Mock(load_checkpoint=AsyncMock())
    ledger = Mock(open=AsyncMock())
    recovering = asyncio.create_task(
        recover(Mock(record=Mock(attempt=1)), Mock(learner=learner), checkpoints, ledger, Mock(), Mock(written=at_once))
    )
    await begun.wait()
    recovering.cancel()
    loop.call_soon(lambda: loop.call_soon(may_end.set))  # After the cancellation has arrived.
    with pytest.raises(asyncio.CancelledError):
        await recovering
    assert ended == ["restored"], "the thread writes the ledger of a run that has ended"
    assert not ledger.open.called


class Stored:
    """Checkpoints of steps 1 to 3; the coordinator's part of some is damaged."""

    def __init__(self, *damaged: str) -> None:
        self.names = ["step-00000001", "step-00000002", "step-00000003"]
        self.damaged = damaged
        self.restored: list[str] = []

    def committed(self) -> list[str]:
        return list(self.names)

    def newest_age(self, names: list[str]) -> tuple[int, int, int] | None:
        return max(((0, int(name[-1]), 0) for name in names), default=None)

    def load_checked(self, name: str) -> Any:
        if name in self.damaged:
            raise DataLoss(f"{name} differs")
        return Mock(checkpoint_id=name, learner_files=())

    def restore_ledger(self, manifest: Any, path: Any, attempt: int) -> None:
        self.restored.append(manifest.checkpoint_id)

    def discard(self, name: str) -> None:
        self.names.remove(name)


class Learner:
    """Restores checkpoints, except some."""

    def __init__(self, *damaged: str) -> None:
        self.damaged = damaged

    async def load_checkpoint(self, name: str, files: Any, attempt: int) -> WeightVersion:
        if name in self.damaged:
            raise NotFound(f"{name} is not there")
        return WeightVersion(attempt, int(name[-1]))


async def recovered(stored: Stored, learner: Any, mirrored: str = "") -> tuple[str, list[str]]:
    """Recovers a run whose mirror has a checkpoint, or none; returns what was restored, and what was reported."""
    reported: list[str] = []

    async def take_back(newer_than: tuple[int, int, int] | None) -> str:
        if not mirrored or (newer_than is not None and (0, int(mirrored[-1]), 0) <= newer_than):
            return ""
        stored.damaged = tuple({*stored.damaged} - {mirrored})
        stored.names = sorted({*stored.names, mirrored})
        return mirrored

    async def open_ledger() -> Any:
        return Mock(policy_version=int(stored.restored[-1][-1]))

    _, manifest = await recover(
        Mock(
            record=Mock(attempt=4, last_checkpoint_id="step-00000003"),
            report=Mock(checkpoint_damaged=lambda name, why: reported.append(f"{name}: {why}")),
        ),
        Mock(learner=learner),
        cast(Checkpoints, stored),
        Mock(open=open_ledger),
        Mock(take_back=take_back),
        Mock(written=at_once),
    )
    assert manifest is not None
    return manifest.checkpoint_id, reported


async def test_the_newest_checkpoint_of_which_every_part_is_whole_is_restored() -> None:
    stored = Stored("step-00000003")
    checkpoint_id, reported = await recovered(stored, Learner("step-00000002"))
    assert (checkpoint_id, stored.restored) == ("step-00000001", ["step-00000001"])
    assert [line.partition(": ")[::2] for line in reported] == [
        ("step-00000003", "step-00000003 differs"), ("step-00000002", "step-00000002 is not there"),
    ]  # fmt: skip
    assert stored.names == ["step-00000001"], "a damaged checkpoint would be taken for one of this lineage"


async def test_a_run_without_a_whole_checkpoint_does_not_begin_again() -> None:
    stored = Stored("step-00000003", "step-00000001")
    with pytest.raises(DataLoss, match=r"step-00000003.*step-00000002.*step-00000001"):
        await recovered(stored, Learner("step-00000002"))
    assert len(stored.names) == 3 and not stored.restored, "what may come back from a copy is kept"


async def test_where_all_checkpoints_are_damaged_or_gone_that_of_the_mirror_is_restored() -> None:
    stored = Stored("step-00000003", "step-00000002", "step-00000001")
    checkpoint_id, reported = await recovered(stored, Learner(), mirrored="step-00000002")
    assert (checkpoint_id, len(reported), stored.names) == ("step-00000002", 2, ["step-00000001", "step-00000002"])
    oldest = Stored("step-00000003", "step-00000002", "step-00000001")
    assert (await recovered(oldest, Learner(), mirrored="step-00000001"))[0] == "step-00000001"
    gone = Stored()
    gone.names = []
    assert await recovered(gone, Learner(), mirrored="step-00000002") == ("step-00000002", [])


async def test_where_the_newest_is_damaged_a_newer_one_of_the_mirror_than_the_one_before_it_is_restored() -> None:
    stored = Stored("step-00000003")
    assert await recovered(stored, Learner(), mirrored="step-00000003") == (
        "step-00000003",
        ["step-00000003: step-00000003 differs"],
    )
    older = Stored("step-00000003")
    assert (await recovered(older, Learner(), mirrored="step-00000002"))[0] == "step-00000002"
    stored, learner = Stored("step-00000003"), Learner("step-00000003")
    assert (await recovered(stored, learner, mirrored="step-00000003"))[0] == "step-00000002", "the learner refuses it"


async def test_a_run_whose_checkpoints_are_gone_does_not_begin_again() -> None:
    gone = Stored()
    gone.names = []
    with pytest.raises(DataLoss, match="all are gone"):
        await recovered(gone, Learner())
