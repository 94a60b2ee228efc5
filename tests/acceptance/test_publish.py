"""A publish of real weights, between real processes, in which a generator dies."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2, coordinator_pb2_grpc, learner_pb2, learner_pb2_grpc, worker_pb2
from tests.support.local_stack import LocalStack, free_port, guessing_config, write_config
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

INTO_THE_PUBLISH_S = 0.25
"""After a step's end: what comes before the broadcast takes some hundredths of a second, the broadcast most of one."""
TIMEOUT_S = 60.0


class Coordinator:
    def __init__(self, address: str) -> None:
        self._address = address

    async def run(self, method: str = "GetRun") -> coordinator_pb2.Run:
        request = getattr(coordinator_pb2, f"{method}Request")()
        async with connect(self._address, "shoal.v1.CoordinatorService") as channel:
            stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            response = await getattr(stub, method)(request, timeout=TIMEOUT_S)
        run: coordinator_pb2.Run = response.run
        return run

    async def until_learner_has(self, policy_version: int) -> None:
        """Returns within a hundredth of a second after the end of a train step."""
        async with connect(self._address, "shoal.v1.CoordinatorService") as channel:
            stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            workers = (await stub.ListWorkers(coordinator_pb2.ListWorkersRequest(), timeout=TIMEOUT_S)).workers
        address = next(worker.address for worker in workers if worker.kind == worker_pb2.WORKER_KIND_LEARNER)
        async with connect(address, "shoal.v1.LearnerService") as channel:
            learner = learner_pb2_grpc.LearnerServiceStub(channel)
            request = learner_pb2.LearnerServiceGetStatusRequest()
            trained = 0
            while trained < policy_version:
                status = await learner.GetStatus(request, timeout=TIMEOUT_S)
                trained = status.version.policy_version
                await asyncio.sleep(0.01)


def test_a_publish_in_which_a_generator_dies_is_repeated_and_its_successor_is_caught_up(tmp_path: Path) -> None:
    # 84 million parameters: a broadcast that lasts long enough to be met.
    config = guessing_config(
        tmp_path,
        model={"path": str(make_tiny_model(tmp_path / "model", heads=64))},
        run={"num_steps": 5},
        sampling={"max_completion_tokens": 8},
        grpo={"group_size": 4, "groups_per_step": 2},
        learner={"learning_rate": 1e-6, "zero_stage": 0},
        launch={"num_generators": 2, "coordinator_port": free_port()},
    )
    coordinator = Coordinator(f"127.0.0.1:{config['launch']['coordinator_port']}")
    with LocalStack(tmp_path / "runs", "meets", str(write_config(tmp_path / "run.toml", config))) as stack:
        stack.until("two generators serve", lambda e: len(e["attributes"].get("generators", ())) == 2, 240)
        killed = stack.services("generator")[1]
        asyncio.run(coordinator.until_learner_has(policy_version=2))
        time.sleep(INTO_THE_PUBLISH_S)
        before = stack.events()[-1]["sequence"]
        killed.send_signal(signal.SIGKILL)
        failed = stack.until("the publish fails", lambda e: e["kind"] == "publish_failed", 60)
        asyncio.run(coordinator.run("PauseRun"))

        repeated = stack.of_kind("publish", after=failed["sequence"])[0]["attributes"]
        assert failed["attributes"]["policy_version"] == repeated["policy_version"] == 2, (failed, repeated)
        assert len(repeated["generators"]) == 1 and repeated["epoch"] > failed["attributes"]["epoch"], repeated
        assert repeated["duration_s"] < config["weights"]["timeout_s"], f"repeated after {repeated['duration_s']} s"

        paused_at = asyncio.run(coordinator.run()).policy_version
        restarted = stack.until(
            "the restarted generator is ready",
            lambda e: e["kind"] == "worker_joined" and e["sequence"] > before,  # Perhaps before the publish failed.
            240,
        )
        alone = [f"generator {restarted['attributes']['address']}"]
        caught_up = stack.until(
            "it is caught up", lambda e: e["kind"] == "publish" and e["attributes"]["generators"] == alone, 60
        )["attributes"]
        assert caught_up["policy_version"] == paused_at == asyncio.run(coordinator.run()).policy_version, caught_up
        print(
            f"\n{failed['message']};\nfailed and repeated in {repeated['duration_s']:.2f} s;"
            f" {caught_up['num_bytes']} bytes in {repeated['broadcast_s']:.2f} s, caught up in"
            f" {caught_up['duration_s']:.2f} s"
        )

        asyncio.run(coordinator.run("ResumeRun"))
        assert stack.wait(240) == 0, stack.tail()
    last = stack.of_kind("publish")[-1]["attributes"]
    assert len(last["generators"]) == 2 and last["policy_version"] == 5, last
    assert not stack.left_over()
