"""Runs that wait for the end of another one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.run.runs import Runs
from shoal.config import parse_config
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config


async def start(cluster: Cluster, config: dict[str, Any], name: str) -> pb.Run:
    request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id=name, queue=True)
    return (await cluster.stub.StartRun(request, timeout=60)).run


async def state(cluster: Cluster, name: str) -> pb.Run:
    return (await cluster.stub.GetRun(pb.GetRunRequest(run_id=name), timeout=60)).run


async def ended(cluster: Cluster, name: str) -> list[str]:
    request = pb.WatchRunRequest(run_id=name)
    events = [response.event async for response in cluster.stub.WatchRun(request, timeout=120)]
    return [str(event.attributes["state"]) for event in events if event.kind == "state"]


async def test_queued_runs_begin_one_after_the_other_and_can_be_followed_meanwhile(
    cluster: Cluster, model: Path
) -> None:
    generator = ScriptedGenerator(cluster.plane, delay_s=0.02)
    generator.may_sample.clear()
    await cluster.add_all(generator)
    runs = [await start(cluster, arithmetic_config(model, run={"num_steps": 3}), name) for name in ("a", "b", "c")]
    assert [run.state for run in runs] == [pb.RUN_STATE_STARTING, pb.RUN_STATE_QUEUED, pb.RUN_STATE_QUEUED]
    assert (await state(cluster, "")).run_id == "a"
    generator.may_sample.set()
    states = await asyncio.gather(*(ended(cluster, name) for name in ("a", "b", "c")))
    assert states[0] == ["STARTING", "RUNNING", "FINISHED"], states
    assert states[1] == states[2] == ["QUEUED", "STARTING", "RUNNING", "FINISHED"], states
    times = [[each.event.event_time.ToNanoseconds() async for each in watch(cluster, name)] for name in ("a", "b", "c")]
    assert times[0][-1] <= times[1][1] and times[1][-1] <= times[2][1], "two runs were active at once"


def watch(cluster: Cluster, name: str) -> Any:
    return cluster.stub.WatchRun(pb.WatchRunRequest(run_id=name), timeout=60)


async def test_a_queued_run_takes_no_command_but_a_stop_and_a_start_without_queue_is_refused(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    config = arithmetic_config(model, run={"num_steps": 40})
    await start(cluster, config, "active")
    await start(cluster, config, "waits")
    with pytest.raises(FailedPrecondition, match="waits has not begun"):
        await cluster.stub.PauseRun(pb.PauseRunRequest(run_id="waits"), timeout=60)
    with pytest.raises(FailedPrecondition, match="--queue"):
        await cluster.start(config, run_id="refused")
    with pytest.raises(InvalidArgument, match="queue"):
        await cluster.stub.StartRun(pb.StartRunRequest(run_id="waits", resume=True, queue=True), timeout=60)
    stopped = (await cluster.stub.StopRun(pb.StopRunRequest(run_id="waits"), timeout=60)).run
    assert stopped.state == pb.RUN_STATE_STOPPED, stopped.message
    assert await ended(cluster, "waits") == ["QUEUED", "STOPPED"]
    assert (await state(cluster, "active")).state in (pb.RUN_STATE_STARTING, pb.RUN_STATE_RUNNING)


async def test_queued_runs_wait_on_over_a_restart_of_the_coordinator(cluster: Cluster, model: Path) -> None:
    config = parse_config(arithmetic_config(model, run={"num_steps": 3}))
    first = Runs(cluster.data_dir, cluster.registry, name="c")
    for name in ("a", "b", "c"):
        await first.start(config, name, queue=True)
    await first.close(grace_s=30)
    again = Runs(cluster.data_dir, cluster.registry, name="c")
    again.take_up()
    try:
        assert again.find("").run_id == "a"
        assert [again.find(name).state for name in ("b", "c")] == ["QUEUED", "QUEUED"]
    finally:
        await again.close(grace_s=30)
