"""What a transfer of weights leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from services.coordinator.workers.member import Member
from services.coordinator.workers.weights.weight_broadcast import Transfer
from shoal.config.services import WeightsConfig
from shoal.rollout import WeightVersion
from shoal.v1 import weights_pb2


class NeverReady:
    """A generator that never gets ready to receive."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def LoadWeights(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        self.asked.set()
        await asyncio.Event().wait()
        yield


async def test_a_transfer_that_is_canceled_leaves_no_task() -> None:
    stub, before = NeverReady(), asyncio.all_tasks()
    member = Member(Mock(worker_id="g"), Mock(), stub)
    learner: Any = Mock()
    transfer = Transfer(
        learner, [member], WeightsConfig(), epoch=1, version=WeightVersion(0, 1), canary=weights_pb2.Canary()
    )
    running = asyncio.create_task(transfer.run())
    await stub.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not left, [task.get_coro() for task in left]
