"""A coordinator in a process of its own, which may be killed and started again."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from services.coordinator.client import coordinator, patiently
from shoal.v1 import coordinator_pb2 as pb
from tests.support.local_stack import free_port
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, ScriptedReward, serving_workers
from tests.support.waiting import PATIENCE_S


class CoordinatorProcess:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{free_port()}"
        self.process: asyncio.subprocess.Process | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, data_dir: Path) -> AsyncIterator[Self]:
        data_dir.mkdir()
        process = cls(data_dir)
        await process.start()
        try:
            yield process
        finally:
            await process.end(signal.SIGKILL)

    async def start(self) -> None:
        command = (sys.executable, "-m", "services.coordinator", "--listen", self.address, "--name", "this")
        self.process = await asyncio.create_subprocess_exec(*command, "--data-dir", str(self.data_dir))

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@asynccontextmanager
async def workers(
    process: CoordinatorProcess,
    learner: ScriptedLearner,
    generator: ScriptedGenerator,
    reward: ScriptedReward | None = None,
) -> AsyncIterator[None]:
    """Workers that register again with a coordinator that is back."""
    async with coordinator(process.address) as stub:
        await patiently(lambda: stub.ListRuns(pb.ListRunsRequest(), timeout=10))
    async with serving_workers(process.address, learner, generator, reward or ScriptedReward(), comes_back=True):
        yield
