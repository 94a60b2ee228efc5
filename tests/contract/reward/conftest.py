"""The reward service over real gRPC, with a real pool of processes."""

from collections.abc import AsyncIterator

import pytest

from services.reward.service import RewardService
from shoal.rpc.channel import connect
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from tests.support.loopback import REWARD, serving
from tests.support.reward_client import ALLOWED, Client


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    service = RewardService(ALLOWED)
    async with serving(service, REWARD) as address, connect(address, REWARD) as channel:
        yield Client(service, RewardServiceStub(channel))
    await service.close()
