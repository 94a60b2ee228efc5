"""Recordings of a run's train steps: when they are refused, what they return, and what drops them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound, ShoalError
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, arithmetic_config
from tests.support.waiting import PATIENCE_S, eventually


async def start(cluster: Cluster, model: Path, **sections: dict[str, Any]) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    await cluster.start(arithmetic_config(model, **{"run": {"num_steps": 40}} | sections))
    await cluster.until("step", step=1)


def profile(cluster: Cluster, num_steps: int = 2, run_id: str = "") -> "asyncio.Task[pb.ProfileRunResponse]":
    request = pb.ProfileRunRequest(run_id=run_id, num_steps=num_steps)

    async def call() -> pb.ProfileRunResponse:
        return await cluster.stub.ProfileRun(request, timeout=PATIENCE_S)

    return asyncio.create_task(call())


async def begun(cluster: Cluster) -> "asyncio.Task[pb.ProfileRunResponse]":
    recording = profile(cluster)
    await eventually(lambda: cluster.learner.profiled == [2] or recording.done(), "the learner is asked")
    return recording


async def test_the_files_and_the_recorded_steps_are_returned_and_reported(cluster: Cluster, model: Path) -> None:
    await start(cluster, model)
    recording = await begun(cluster)
    first = cluster.plane.policy_version + 1
    await cluster.until("step", step=first + 1)
    cluster.learner.may_end_profile.set()
    response = await recording
    assert list(response.paths) == ["/data/profiles/rank-0.json.gz", "/data/profiles/rank-1.json.gz"]
    assert first - 1 <= response.first_step <= first < response.last_step, response
    (event,) = of_kind(await cluster.until("profile"), "profile")
    assert list(event.attributes["paths"]) == list(response.paths), event
    assert "2 ranks" in event.message and response.paths[0] in event.message, event.message


async def test_a_run_that_does_not_train_is_not_recorded(cluster: Cluster, model: Path) -> None:
    async def refused(run_id: str = "") -> ShoalError:
        with pytest.raises(ShoalError) as caught:
            await profile(cluster, run_id=run_id)
        return caught.value

    nothing = await refused()
    assert isinstance(nothing, NotFound) and nothing.reason == "NO_ACTIVE_RUN", nothing
    await start(cluster, model)
    assert isinstance(await refused("another"), NotFound)
    await cluster.pause()
    paused = await refused()
    assert isinstance(paused, FailedPrecondition) and paused.reason == ErrorReason.NOT_TRAINING, paused
    assert "PAUSED" in paused.message, paused.message
    run = await cluster.stop()
    await cluster.end()
    ended = await refused(run.run_id)
    assert isinstance(ended, FailedPrecondition) and ended.reason == "RUN_ENDED", ended
    assert not cluster.learner.profiled, "the learner was asked"


async def test_what_the_learner_refuses_is_refused_and_nothing_is_dropped(cluster: Cluster, model: Path) -> None:
    await start(cluster, model)
    with pytest.raises(InvalidArgument, match=r"1 to 10"):
        await profile(cluster, num_steps=11)
    await cluster.stop()
    assert not {"profile", "profile_dropped"} & set(kinds((await cluster.end())[1]))


async def test_a_lost_learner_drops_the_recording_and_the_run_goes_on(cluster: Cluster, model: Path) -> None:
    await start(cluster, model, run={"num_steps": 6}, checkpoint={"every_steps": 1})
    recording = await begun(cluster)
    await cluster.until("checkpoint")
    await cluster.kill("learner-0")
    with pytest.raises(Aborted, match="no file is written") as dropped:
        await recording
    assert dropped.value.reason == ErrorReason.PROFILE_DROPPED
    await cluster.until("restarting")
    cluster.learner = ScriptedLearner(cluster.plane)
    await cluster.add(cluster.learner, "learner-1")
    _, events = await cluster.finish(6, attempt=1)
    (event,) = of_kind(events, "profile_dropped")
    assert event.attributes["reason"] and "profile" not in kinds(events), event
    assert not cluster.learner.profiled, "the new learner records although nobody has asked it"


async def test_the_end_of_a_run_drops_the_recording_on_the_learner_too(cluster: Cluster, model: Path) -> None:
    await start(cluster, model)
    recording = await begun(cluster)
    await cluster.stop()
    with pytest.raises(Aborted, match="the run ended") as dropped:
        await recording
    assert dropped.value.reason == ErrorReason.PROFILE_DROPPED
    await eventually(lambda: cluster.learner.num_dropped_profiles == 1, "the learner drops it")
    assert "profile_dropped" in kinds((await cluster.end())[1])


async def test_a_caller_that_goes_drops_the_recording_and_nothing_else(cluster: Cluster, model: Path) -> None:
    await start(cluster, model)
    recording = await begun(cluster)
    recording.cancel()
    await eventually(lambda: cluster.learner.num_dropped_profiles == 1, "the learner drops it")
    step = cluster.plane.policy_version
    await cluster.until("step", step=step + 2)
    await cluster.stop()
    assert not {"profile", "profile_dropped"} & set(kinds((await cluster.end())[1]))
