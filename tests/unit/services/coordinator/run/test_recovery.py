"""How a restore ends when the run stops in the middle of it."""

import asyncio
import threading
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from services.coordinator.run.recovery import recover


async def test_a_stop_waits_for_the_ledger_that_is_being_restored() -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    ended: list[str] = []

    def restore_ledger(*arguments: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(60), "the test did not let the restore end"
        ended.append("restored")

    checkpoints = Mock(committed=lambda: ["step-00000002"], restore_ledger=restore_ledger)
    learner = Mock(load_checkpoint=AsyncMock())
    recovering = asyncio.create_task(recover(Mock(attempt=1), Mock(), checkpoints, Mock(), learner))
    await begun.wait()
    recovering.cancel()
    loop.call_soon(lambda: loop.call_soon(may_end.set))  # After the cancellation has arrived.
    with pytest.raises(asyncio.CancelledError):
        await recovering
    assert ended == ["restored"], "the thread writes the ledger of a run that has ended"
    assert not learner.load_checkpoint.called
