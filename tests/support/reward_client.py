"""Clients of a reward service, in the test's process or in a process of its own."""

import asyncio
import ctypes
import json
import os
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from google.protobuf.struct_pb2 import Struct
from prometheus_client.parser import text_string_to_metric_families

from services.reward.allowed import Allowed
from services.reward.service import RewardService
from shoal.config.load import config_struct
from shoal.rollout import GroundTruth, Prompt
from shoal.rpc.channel import connect
from shoal.scores import Score
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire import int32_to_wire, prompt_to_wire, score_from_wire
from tests.support.configs import run_config
from tests.support.processes import serving_process
from tests.support.waiting import eventually
from tests.support.warm_modules import TEMPLATE

TEMPORARY = Path(tempfile.gettempdir())
ALLOWED = Allowed(
    verifier_folders=(TEMPORARY,),
    verifier_packages=("plugin", "no_such", "a"),
    api_keys=(("NO_SUCH_KEY", "http://127.0.0.1:9/v1"),),
)
"""What the tests' reward services allow: files that a test writes, and names that some tests need."""

FIVE = GroundTruth("gsm8k", "5")
HANG = GroundTruth("hang", "")
"""A verifier that hangs at the completion "hang", waits for a file at its path, and scores others by whether they are
"5"."""
SERVICE = "shoal.v1.RewardService"
TIMEOUT_S = 120
_PR_SET_CHILD_SUBREAPER = 36


class RewardClient:
    def __init__(self, stub: RewardServiceStub) -> None:
        self.stub = stub

    async def configure(self, run_id: str = "run-1", **reward: Any) -> worker_pb2.WorkerStatus:
        request = reward_pb2.RewardServiceConfigureRequest(run_id=run_id, config=config(**reward))
        return (await self.stub.Configure(request, timeout=TIMEOUT_S)).status

    async def configured(self, **reward: Any) -> Self:
        await self.configure(**reward)
        await self.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_READY)
        return self

    async def status(self) -> reward_pb2.RewardServiceGetStatusResponse:
        return await self.stub.GetStatus(reward_pb2.RewardServiceGetStatusRequest(), timeout=60)

    async def until(self, holds: Callable[[reward_pb2.RewardServiceGetStatusResponse], bool]) -> None:
        async def is_so() -> bool:
            return holds(await self.status())

        await eventually(is_so)

    async def until_running(self, number: int) -> None:
        await self.until(lambda status: status.status.load.num_running >= number)

    async def score(self, truths: Sequence[GroundTruth], texts: Sequence[str]) -> list[Score]:
        """Returns scores in order of arrival."""
        requests = [prompt_request(truths), *(completion_request(*pair) for pair in enumerate(texts))]
        return await self.send(requests)

    async def send(self, requests: Sequence[reward_pb2.ScoreGroupRequest]) -> list[Score]:
        call = self.stub.ScoreGroup(iter(requests), timeout=TIMEOUT_S)
        return [score_from_wire(response.score) async for response in call]


class Client(RewardClient):
    def __init__(self, service: RewardService, stub: RewardServiceStub) -> None:
        super().__init__(stub)
        self.service = service

    def open_stream(self, *requests: reward_pb2.ScoreGroupRequest) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        """Sends the requests, and does not end the stream."""

        async def stream() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
            for request in requests:
                yield request
            await asyncio.Event().wait()

        return aiter(self.stub.ScoreGroup(stream(), timeout=TIMEOUT_S))


def config(**reward: Any) -> Struct:
    return config_struct(run_config(grpo={"group_size": 2}, reward=reward))


def prompt_request(truths: Sequence[GroundTruth]) -> reward_pb2.ScoreGroupRequest:
    prompt = Prompt("test:0", np.zeros(0, np.int32), "a question", tuple(truths))
    return reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))


def completion_request(index: int, text: str, token_ids: Sequence[int] = ()) -> reward_pb2.ScoreGroupRequest:
    return reward_pb2.ScoreGroupRequest(
        completion=rollout_pb2.Completion(
            sample_index=index,
            text=text,
            token_ids=int32_to_wire(np.array(token_ids, np.int32)),
            finish_reason=rollout_pb2.FINISH_REASON_STOP,
        )
    )


class RewardProcess(RewardClient):
    """A reward service in a process of its own, all of whose descendants are known."""

    def __init__(
        self, stub: RewardServiceStub, address: str, process: psutil.Process, log: Path, others: set[psutil.Process]
    ) -> None:
        """`others` are the descendants of the tests' process that existed before."""
        super().__init__(stub)
        self.address = address
        self.process = process
        self._log = log
        self._others = others

    def descendants(self) -> list[psutil.Process]:
        """Returns its living descendants, orphans included, without itself."""
        return [child for child in living(psutil.Process()) if child != self.process and child not in self._others]

    def metric(self, sample: str, **labels: str) -> float:
        """Returns the sum of a Prometheus sample's values with these labels; 0 without any."""
        entries = [json.loads(line) for line in self._log.read_text().splitlines()]
        [port] = [entry["port"] for entry in entries if entry["event"] == "metrics"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [found for family in families for found in family.samples if found.name == sample]
        return sum(found.value for found in samples if labels.items() <= found.labels.items())


def living(top: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in top.children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and child.cmdline()[:1] != [TEMPLATE]:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def _orphans_come_here() -> Iterator[None]:
    """Makes this process the parent of orphaned descendants, so that none is missed."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@asynccontextmanager
async def reward_process(folder: Path, **environment: str) -> AsyncIterator[RewardProcess]:
    """Runs `python -m services.reward`, not configured; ends it with SIGTERM and fails if a descendant outlives it."""
    log = folder / "reward.log"
    before = set(living(psutil.Process()))
    with _orphans_come_here():
        options = ("--metrics-port", "0", "--log-file", log, "--allow-verifier-folder", TEMPORARY)
        async with (
            serving_process("services.reward", *options, **environment) as (started, address),
            connect(address, SERVICE) as channel,
        ):
            yield RewardProcess(RewardServiceStub(channel), address, psutil.Process(started.pid), log, before)
        _, alive = await asyncio.to_thread(psutil.wait_procs, set(living(psutil.Process())) - before, 60)
        assert not alive, f"left behind by the reward service: {alive}"
