"""Every fault of a publish ends within its deadline, and costs the generator that is at fault alone.

The coordinator's real publisher, services and gloo groups in light processes; for vLLM see test_weights.py.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from services.coordinator.store.events import EventLog, read_events
from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.weights.publisher import Publisher
from shoal.errors import ShoalError
from shoal.rollout import WeightVersion
from shoal.v1 import worker_pb2
from tests.support.gloo_fleet import GENERATOR, LEARNER, GlooFleet, Worker, fleet_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TIMEOUT_S = 12.0
BOUND_S = TIMEOUT_S + 5.0


class Setting:
    """A fleet with a publisher, and what its events say."""

    def __init__(self, folder: Path) -> None:
        config = fleet_config(timeout_s=TIMEOUT_S, ready_timeout_s=2.0)
        self.fleet = GlooFleet(folder, config)
        self.events = EventLog(folder / "events.jsonl")
        any_fleet: Any = self.fleet
        self.learner = LearnerClient(any_fleet, config, self.events)
        epochs = count(1)

        async def next_epoch() -> int:
            return next(epochs)

        self.publisher = Publisher(
            config, any_fleet, self.learner, self.events, next_epoch, np.arange(8, dtype=np.int32)
        )
        self.epoch = 0

    async def publish(self, policy_version: int) -> tuple[list[str], float]:
        """Returns the names of the generators that have the version, and the seconds that it took."""
        began = time.monotonic()
        report = await self.publisher.publish(WeightVersion(0, policy_version))
        return report.loaded, time.monotonic() - began

    def failed(self) -> list[dict[str, Any]]:
        events = read_events(self.fleet.folder / "events.jsonl")
        return [
            dict(event.attributes) | {"message": event.message} for event in events if event.kind == "publish_failed"
        ]


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    setting = Setting(tmp_path)
    try:
        await setting.fleet.start(LEARNER, "learner")
        for name in ("one", "two"):
            await setting.fleet.start(GENERATOR, name)
        yield setting
    finally:
        await setting.fleet.close()


async def has(worker: Worker, policy_version: int) -> bool:
    status = await worker.status()
    return bool(status.HasField("version") and status.version.policy_version == policy_version)


FAULTS = [(point, action) for point in ("join", "ready", "during", "received") for action in ("kill", "stop")]
FAULTS += [("join", "hang"), ("during", "hang"), ("during", "flip")]


async def test_every_fault_ends_within_the_deadline_and_costs_the_generator_at_fault_alone(setting: Setting) -> None:
    """One fault after the other, each of another generator."""
    version, report = 0, []
    for point, action in FAULTS:
        if point != "join":
            bad = await setting.fleet.start(GENERATOR, f"{point}-{action}")
        loaded, _ = await setting.publish(version := version + 1)
        assert len(loaded) == len(setting.fleet.generators), loaded
        if point == "join":  # It joins with the next publish.
            bad = await setting.fleet.start(GENERATOR, f"{point}-{action}")
        bad.will(point, action)
        num_failed = len(setting.failed())
        loaded, duration_s = await setting.publish(version := version + 1)
        failed = setting.failed()[num_failed:]
        report.append(f"{point:9}{action:6}{duration_s:6.2f} s  {[entry['reason'] for entry in failed]}")
        print(report[-1])
        assert duration_s < BOUND_S, report
        assert [entry["worker_id"] for entry in failed] == [f"{point}-{action}"], (report, failed)
        assert len(loaded) == 2 and not any(bad.member.name == name for name in loaded), (report, loaded)
        for worker in setting.fleet.workers[1:3]:
            assert await has(worker, version), report
        assert not bad.member.serving and not bad.member.standing.may_try(0.0), report
        if action == "flip":
            assert failed[0]["reason"] == "WEIGHTS_CORRUPT", failed
        await setting.fleet.end(bad)


async def test_a_generator_of_another_model_is_left_out_at_once(setting: Setting) -> None:
    other = await setting.fleet.start(GENERATOR, "other")
    other.script.file.write_text("manifest")
    loaded, duration_s = await setting.publish(1)
    (failed,) = setting.failed()
    assert len(loaded) == 2 and duration_s < BOUND_S, (loaded, duration_s)
    assert (failed["worker_id"], failed["reason"]) == ("other", "INVALID_ARGUMENT"), failed
    assert failed["epoch"] == 1, "more than one more pass"


async def test_a_stopped_generator_that_goes_on_is_caught_up(setting: Setting) -> None:
    bad = await setting.fleet.start(GENERATOR, "stopped")
    await setting.publish(1)
    bad.will("during", "stop")
    loaded, _ = await setting.publish(2)
    assert len(loaded) == 2 and setting.fleet.out == ["stopped"], [dict(e) for e in setting.failed()]
    os.kill(bad.process.pid, signal.SIGCONT)
    await eventually(bad.status)
    bad.member.is_out_of_reach, bad.member.standing.retry_at = False, 0.0
    await setting.publisher.catch_up(WeightVersion(0, 2))
    assert bad.member.serving and await has(bad, 2)


@pytest.mark.parametrize("action", ["kill", "stop"])
async def test_generators_leave_the_collective_of_a_learner_that_is_gone(setting: Setting, action: str) -> None:
    await setting.publish(1)
    setting.fleet.workers[0].will("during", action)
    publishing = asyncio.create_task(setting.publish(2))
    began = time.monotonic()

    async def are_out() -> bool:
        statuses = [await worker.status() for worker in setting.fleet.workers[1:]]
        return all(status.status.state == worker_pb2.WORKER_STATE_STALE for status in statuses)

    await eventually(are_out, timeout_s=BOUND_S)
    assert time.monotonic() - began < BOUND_S
    await setting.fleet.end(setting.fleet.workers[0])
    with pytest.raises(ShoalError):
        await publishing
