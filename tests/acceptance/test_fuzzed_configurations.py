"""Configurations shaped as their schema is, to StartRun and UpdateRunConfig over sockets, with scripted workers.

What is accepted trains, changes while it does, and is stopped. `SHOAL_FUZZ_S` sets the seconds, `SHOAL_FUZZ_SEED` the
first seed; a failure prints the values, the smallest that show it.
"""

import asyncio
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from google.protobuf import json_format
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from shoal.errors import Internal, ShoalError
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster
from tests.support.config_values import changes, nested
from tests.support.fuzzed_files.trial import check_message
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config
from tests.support.tiny_model import make_tiny_model

SECONDS = float(os.environ.get("SHOAL_FUZZ_S", "60"))
SEED = int(os.environ.get("SHOAL_FUZZ_SEED", "1"))
EXAMPLES = 20
"""Of a batch, which has a seed of its own."""
ENDS_WITHIN_S = 120.0
OUTSIDE = ("mirror", "tracking")
"""Fields that name places which a test must not write to."""

TRAINS_FOR_S = 3.0
"""Longest wait for the first step of a run."""

masks = st.lists(st.sampled_from(["run", "learner", "x.y"]), max_size=1)
few = changes.map(lambda pairs: [pair for pair in pairs if not any(name in str(pair) for name in OUTSIDE)][:2])


class Driver:
    """A cluster on an event loop of its own: the examples are drawn outside of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = make_tiny_model(folder / "model")
        (folder / "runs").mkdir()
        self.counts: Counter[str] = Counter()
        self._num_runs = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.wait_for(self._open())

    def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(4 * ENDS_WITHIN_S)

    async def _open(self) -> None:
        self.cluster = Cluster(self.folder / "runs")
        await self.cluster.open()
        await self.cluster.add_all(ScriptedGenerator(self.cluster.plane))

    def close(self) -> None:
        self.wait_for(self.cluster.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def play(self, start: list[Any], trains: bool, updates: list[list[Any]], mask: list[str]) -> None:
        """Starts a run, lets it train, changes it, stops it; each is done, or refused with what is wrong."""
        self._num_runs += 1
        run_id = f"run-{self._num_runs}"
        base = arithmetic_config(self.model, run={"num_steps": 50})
        config = _struct(nested(start, base))
        if config is None:
            return
        request = pb.StartRunRequest(run_id=run_id, config=config)
        if not await self._done("StartRun", request):
            return
        if trains:
            await self._trained(run_id)
        for pairs in updates:
            if (values := _struct(nested(pairs, {}))) is not None:
                update = pb.UpdateRunConfigRequest(run_id=run_id, config=values, update_mask=FieldMask(paths=mask))
                await self._done("UpdateRunConfig", update)
        await self._done("GetRun", pb.GetRunRequest(run_id=run_id))
        await self._done("StopRun", pb.StopRunRequest(run_id=run_id, mode=pb.STOP_MODE_NOW))
        run = await self._ended(run_id)
        self.counts[f"ended {pb.RunState.Name(run.state).removeprefix('RUN_STATE_')}"] += 1
        assert "defect" not in run.message, run.message
        shutil.rmtree(self.folder / "runs" / run_id, ignore_errors=True)

    async def _done(self, method: str, request: Any) -> bool:
        try:
            await getattr(self.cluster.stub, method)(request, timeout=ENDS_WITHIN_S)
        except ShoalError as error:
            self.counts[f"{method} {type(error).__name__}"] += 1
            assert not isinstance(error, Internal), f"{method}: {error.message}"
            check_message(error)
            return False
        self.counts[f"{method} OK"] += 1
        return True

    async def _trained(self, run_id: str) -> None:
        """Waits for the first step, as long as a run takes that can train."""
        try:
            async for response in self.cluster.stub.WatchRun(pb.WatchRunRequest(run_id=run_id), timeout=TRAINS_FOR_S):
                if response.event.kind == "step":
                    self.counts["trained"] += 1
                    return
        except ShoalError:
            self.counts["did not train"] += 1

    async def _ended(self, run_id: str) -> pb.Run:
        async with asyncio.timeout(ENDS_WITHIN_S):
            while True:
                run: pb.Run = (await self.cluster.stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=60)).run
                if run.state in (pb.RUN_STATE_FINISHED, pb.RUN_STATE_STOPPED, pb.RUN_STATE_FAILED):
                    return run
                await asyncio.sleep(0.02)


def _struct(values: dict[str, Any]) -> Struct | None:
    struct = Struct()
    try:
        json_format.ParseDict(values, struct)
        struct.SerializeToString()
    except (json_format.ParseError, ValueError, TypeError, OverflowError):
        return None  # What no client can send.
    return struct


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    driver = Driver(tmp_path)
    yield driver
    driver.close()


@pytest.mark.timeout(0)
def test_a_configuration_trains_and_changes_or_is_refused_with_what_is_wrong(driver: Driver) -> None:
    seed, end = SEED, time.monotonic() + SECONDS
    while time.monotonic() < end:

        @hypothesis.seed(seed)
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )  # fmt: skip
        @hypothesis.given(few, st.booleans(), st.lists(few, max_size=4), masks)
        def play(start: list[Any], trains: bool, updates: list[list[Any]], mask: list[str]) -> None:
            driver.wait_for(driver.play(start, trains, updates, mask))

        play()
        seed += 1
    print(f"\n{driver.counts.total()} answers from seed {SEED} to {seed - 1}: {dict(sorted(driver.counts.items()))}")
