"""A real learner process restarts for the next run: rank 0 in place, the other ranks anew, even if one is stuck."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from shoal.config.load import config_struct
from shoal.errors import ShoalError, Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from tests.support.configs import run_config
from tests.support.local_stack import free_port
from tests.support.loopback import LEARNER
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

NOBODY = "127.0.0.1:1"
STARTING_S = 300.0


class LearnerProcess:
    """A learner process, or its launcher, at a fixed address."""

    def __init__(self, folder: Path, *command: str, coordinator: str = NOBODY) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.model = make_tiny_model(folder / "model")
        self._log = (folder / "learner.log").open("w")
        options = ("--coordinator", coordinator, "--listen", self.address, "--data-dir", str(folder / "runs"))
        # One thread: ranks of several learners share the machine's cores.
        self._process = subprocess.Popen(
            [sys.executable, *command, *options],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.mine = psutil.Process(self._process.pid)

    async def configure(self, run_id: str, zero_stage: int) -> worker_pb2.WorkerStatus:
        config = run_config(self.model, learner={"zero_stage": zero_stage, "compute_dtype": "float32"})
        request = learner_pb2.LearnerServiceConfigureRequest(run_id=run_id, config=config_struct(config))
        async with connect(self.address, LEARNER) as channel:
            status: worker_pb2.WorkerStatus = (await LearnerServiceStub(channel).Configure(request, timeout=60)).status
            return status

    async def load(self, run_id: str, zero_stage: int) -> list[int]:
        """Configures the learner as soon as it accepts the run, waits for the model; returns the pids of all ranks."""
        async with asyncio.timeout(STARTING_S):
            while True:
                try:
                    state = (await self.configure(run_id, zero_stage)).state
                except Unavailable:
                    await asyncio.sleep(0.3)
                    continue
                assert state in (worker_pb2.WORKER_STATE_LOADING, worker_pb2.WORKER_STATE_READY), state
                if state == worker_pb2.WORKER_STATE_READY:
                    async with connect(self.address, LEARNER) as channel:
                        request = learner_pb2.LearnerServiceGetStatusRequest()
                        return list((await LearnerServiceStub(channel).GetStatus(request, timeout=60)).rank_pids)
                await asyncio.sleep(0.3)

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def end(self) -> list[psutil.Process]:
        """Ends the learner by SIGTERM; returns the processes left over."""
        everything = [self.mine, *self.mine.children(recursive=True)] if self._process.poll() is None else []
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        _, left = psutil.wait_procs(everything, timeout=60)
        for process in left:
            process.kill()
        self._log.close()
        return left


@asynccontextmanager
async def learner(folder: Path, *command: str, coordinator: str = NOBODY) -> AsyncIterator[LearnerProcess]:
    process = LearnerProcess(folder, *command, coordinator=coordinator)
    try:
        yield process
    except (AssertionError, ShoalError, TimeoutError) as error:
        error.add_note(process.log()[-4000:])
        raise
    finally:
        left = process.end()
    assert not left, f"left behind: {left}"


async def refusal(process: LearnerProcess, run_id: str, zero_stage: int) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        await process.configure(run_id, zero_stage)
    return caught.value


def check_refusal(error: ShoalError) -> None:
    """Checks what a learner says that restarts. It may serve no calls any more."""
    assert error.reason == "UNAVAILABLE" or (error.reason == "STARTING_OVER" and "run run-a" in error.message), error


async def test_a_learner_of_two_ranks_restarts_in_its_process_even_when_a_rank_is_stuck(tmp_path: Path) -> None:
    async with learner(tmp_path, "-m", "services.learner", "--num-ranks", "2") as process:
        first = await process.load("run-a", 2)
        # A stopped process takes part in nothing, not even in leaving, as a rank that hangs in a step.
        psutil.Process(first[1]).suspend()
        began = time.monotonic()
        check_refusal(await refusal(process, "run-b", 3))
        try:
            await process.configure("run-b", 3)  # Where this test stood still, it may serve again.
        except ShoalError as error:
            check_refusal(error)
        second = await process.load("run-b", 3)
        print(f"another run after {time.monotonic() - began:.1f} s, with a rank that hung")
        assert second[0] == first[0] == process.mine.pid, "rank 0 is another process"
        assert not psutil.pid_exists(first[1]), "the hanging rank of the earlier run is alive"
        assert [child.pid for child in process.mine.children()] == second[1:]
        follower = psutil.Process(second[1])
        process.mine.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, [follower], 60)
        assert not alive, "rank 1 outlives rank 0"
    events = [json.loads(line).get("event") for line in process.log().splitlines() if line.startswith("{")]
    assert events.count("restarting") == 1 and "some work has not ended" not in " ".join(map(str, events)), events
