"""Every fault of a publish ends within its deadline, and costs the generator that is at fault alone.

The coordinator's real publisher, services and gloo groups in light processes; for vLLM see test_weights.py.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("torch")

from services.coordinator.store.events import EventLog, read_events
from services.coordinator.workers import member
from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.weights import weight_broadcast
from services.coordinator.workers.weights.publisher import Publisher
from shoal.config.live import LiveConfig
from shoal.errors import ShoalError
from shoal.rollout import WeightVersion
from shoal.v1 import worker_pb2
from tests.support.configs import run_config
from tests.support.gloo_fleet import GlooFleet, Worker
from tests.support.loopback import GENERATOR, LEARNER
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SILENT_S = 8.0
"""Longer than a busy machine keeps a generator that is not at fault from getting ready, or from answering."""
TIMEOUT_S = 24.0
"""More than twice as long: what does not answer is found by that."""
GRACE_S = 20.0
"""For what a busy machine adds to a deadline."""


Scenes = dict[Any, "asyncio.Task[None]"]


class Setting:
    def __init__(self, folder: Path, timeout_s: float) -> None:
        weights = {"backend": "gloo", "dtype": "float32", "timeout_s": timeout_s, "ready_timeout_s": SILENT_S}
        config = run_config(weights=weights)
        self.fleet = GlooFleet(folder, config)
        self.events = EventLog(folder / "events.jsonl")
        self.learner = LearnerClient(self.fleet, LiveConfig(config), self.events)
        epochs = count(1)

        async def next_epoch() -> int:
            return next(epochs)

        self.publisher = Publisher(
            config, self.fleet, self.learner, self.events, next_epoch, np.arange(8, dtype=np.int32)
        )

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

    def failures(self) -> str:
        return "; ".join(entry["message"] for entry in self.failed())


@asynccontextmanager
async def setting_in(folder: Path, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Setting]:
    folder.mkdir(exist_ok=True)
    setting = Setting(folder, timeout_s)
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


FAULTS = (
    (("join", "hang"), ("join", "kill")),
    (("join", "stop"), ("ready", "kill")),
    (("ready", "stop"),),
    (("during", "stop"),),
    (("during", "hang"),),
    (("during", "kill"), ("during", "flip")),
    (("received", "stop"), ("received", "kill")),
)
"""Points and actions. Those of a row happen one after the other; only the first one of a row takes long."""


async def suffer(folder: Path, faults: Sequence[tuple[str, str]]) -> None:
    """Publishes to generators with these faults, one after the other, each of another generator."""
    async with setting_in(folder) as setting:
        version, report = 0, []
        for point, action in faults:
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
            assert duration_s < TIMEOUT_S + GRACE_S, report
            assert [entry["worker_id"] for entry in failed] == [f"{point}-{action}"], (report, setting.failures())
            assert len(loaded) == 2 and not any(bad.member.name == name for name in loaded), (report, loaded)
            for worker in setting.fleet.workers[1:3]:
                assert await has(worker, version), report
            assert not bad.member.serving and not bad.member.standing.may_try(0.0), report
            if action == "flip":
                assert failed[0]["reason"] == "WEIGHTS_CORRUPT", failed
            await setting.fleet.end(bad)


async def publish_to_another_model(folder: Path) -> None:
    async with setting_in(folder) as setting:
        other = await setting.fleet.start(GENERATOR, "other")
        other.script.file.write_text("manifest")
        loaded, duration_s = await setting.publish(1)
        (failed,) = setting.failed()
        assert len(loaded) == 2 and duration_s < GRACE_S, (loaded, duration_s)
        assert (failed["worker_id"], failed["reason"]) == ("other", "INVALID_ARGUMENT"), failed
        assert failed["epoch"] == 1, "more than one more pass"


async def stop_for_a_while(folder: Path) -> None:
    async with setting_in(folder) as setting:
        bad = await setting.fleet.start(GENERATOR, "stopped")
        await setting.publish(1)
        bad.will("during", "stop")
        loaded, _ = await setting.publish(2)
        assert len(loaded) == 2 and setting.fleet.out == ["stopped"], setting.failures()
        os.kill(bad.process.pid, signal.SIGCONT)
        await eventually(bad.status)
        bad.member.is_out_of_reach, bad.member.standing.retry_at = False, 0.0
        await setting.publisher.catch_up(WeightVersion(0, 2))
        assert bad.member.serving and await has(bad, 2)


async def lose_the_learner(folder: Path, action: str) -> None:
    timeout_s = 12.0
    async with setting_in(folder, timeout_s) as setting:
        await setting.publish(1)
        setting.fleet.workers[0].will("during", action)
        publishing = asyncio.create_task(setting.publish(2))

        async def are_out() -> bool:
            statuses = [await worker.status() for worker in setting.fleet.workers[1:]]
            return all(status.status.state == worker_pb2.WORKER_STATE_STALE for status in statuses)

        await eventually(are_out, timeout_s=timeout_s + GRACE_S)
        await setting.fleet.end(setting.fleet.workers[0])
        with pytest.raises(ShoalError):
            await publishing


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scenes]:
    """Everything that happens to a fleet, each to a fleet of its own, side by side: most of the time is a wait."""
    folder = tmp_path_factory.mktemp("fleets")
    scenes = {
        **{faults: suffer(folder / str(number), faults) for number, faults in enumerate(FAULTS)},
        "another model": publish_to_another_model(folder / "model"),
        "stopped": stop_for_a_while(folder / "stopped"),
        **{action: lose_the_learner(folder / action, action) for action in ("kill", "stop")},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (member, weight_broadcast):
            patch.setattr(module, "STATUS_TIMEOUT_S", SILENT_S)
        tasks = {name: asyncio.create_task(scene) for name, scene in scenes.items()}
        yield tasks
        await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("faults", FAULTS)
async def test_every_fault_ends_within_the_deadline_and_costs_the_generator_at_fault_alone(
    scenes: Scenes, faults: Sequence[tuple[str, str]]
) -> None:
    await scenes[faults]


async def test_a_generator_of_another_model_is_left_out_at_once(scenes: Scenes) -> None:
    await scenes["another model"]


async def test_a_stopped_generator_that_goes_on_is_caught_up(scenes: Scenes) -> None:
    await scenes["stopped"]


@pytest.mark.parametrize("action", ["kill", "stop"])
async def test_generators_leave_the_collective_of_a_learner_that_is_gone(scenes: Scenes, action: str) -> None:
    await scenes[action]
