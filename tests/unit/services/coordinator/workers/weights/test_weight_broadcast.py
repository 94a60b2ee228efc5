"""How a transfer of weights ends, and what it leaves behind."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from services.coordinator.workers.member import Member
from services.coordinator.workers.weights import weight_broadcast
from services.coordinator.workers.weights.weight_broadcast import Transfer, WeightGroup
from shoal.config.tables.weights import WeightsConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, Unavailable
from shoal.rollout import WeightVersion
from shoal.v1 import generator_pb2, weights_pb2


class NeverReady:
    """A generator that never gets ready to receive."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def LoadWeights(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        self.asked.set()
        await asyncio.Event().wait()
        yield


def transfer_to(
    group: WeightGroup, config: WeightsConfig, *, learner: Any = None, usual_s: float | None = None
) -> Transfer:
    version, canary = WeightVersion(0, 1), weights_pb2.Canary()
    return Transfer(learner, group, config, version=version, canary=canary, usual_s=usual_s)


async def test_a_transfer_that_is_canceled_leaves_no_task() -> None:
    stub, before = NeverReady(), asyncio.all_tasks()
    group = WeightGroup(1, [Member(Mock(worker_id="g"), Mock(), stub)], 60.0)
    running = asyncio.create_task(transfer_to(group, WeightsConfig()).run())
    await stub.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not left, [task.get_coro() for task in left]


async def test_a_member_that_is_never_ready_fails_and_leaves_no_exception_unseen() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    group = WeightGroup(1, [Member(Mock(worker_id="g"), Mock(), NeverReady())], 60.0)
    result = await transfer_to(group, WeightsConfig(ready_timeout_s=0.01)).run()
    assert [(name, type(error)) for name, error in result.failures.items()] == [("g", DeadlineExceeded)]
    gc.collect()
    await asyncio.sleep(0)
    assert not reported, f"the event loop was told of {reported}"


class ReadyMember:
    """A generator that gets ready to receive, and waits for ever, or dies as soon as the broadcast has begun."""

    def __init__(self, dies_after: asyncio.Event | None = None) -> None:
        self.dies_after = dies_after

    async def GetStatus(self, request: Any, timeout: float) -> Any:
        return Mock()

    async def LoadWeights(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        yield generator_pb2.LoadWeightsResponse(stage=generator_pb2.LOAD_STAGE_READY)
        await (self.dies_after or asyncio.Event()).wait()
        raise Unavailable("the connection broke")


async def test_a_broadcast_that_goes_on_after_a_death_is_waited_for_no_longer_than_a_usual_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_broadcast, "_GRACE_S", 0.05)
    has_begun = asyncio.Event()

    class EndlessBroadcast:
        async def publish_weights(self, *_: Any) -> Any:
            has_begun.set()
            await asyncio.Event().wait()

    members = [
        Member(Mock(worker_id=name), Mock(), stub)
        for name, stub in (("dies", ReadyMember(has_begun)), ("survives", ReadyMember()))
    ]
    config = WeightsConfig(ready_timeout_s=3600.0)  # Longer than any test may take.
    group = WeightGroup(1, members, 7200.0)
    result = await transfer_to(group, config, learner=EndlessBroadcast(), usual_s=0.01).run()
    reasons = {worker_id: error.reason for worker_id, error in result.failures.items()}
    assert reasons == {"dies": ErrorReason.UNAVAILABLE, "survives": ErrorReason.WEIGHT_GROUP_BROKEN}, reasons
    assert not result.loaded and result.sent is None
