"""The reward service over real gRPC, with a real pool of processes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def custom(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "hang.py"
    file.write_text(
        "import pathlib, time\ndef score(completion):\n    if completion == 'hang':\n        time.sleep(3600)\n"
        "    while completion[0] == '/' and not pathlib.Path(completion).exists():\n        time.sleep(0.01)\n"
        "    return completion == '5'\n"
    )
    return {"hang": {"file": str(file)}}


@pytest.fixture
async def reward() -> AsyncIterator[RewardService]:
    service = RewardService(ALLOWED)
    yield service
    await service.close()
