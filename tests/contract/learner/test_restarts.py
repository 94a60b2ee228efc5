"""A run that loses its learner goes on by itself: real coordinator, scripted workers."""

from pathlib import Path
from typing import Any

import pytest

from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, learner_pb2, worker_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, arithmetic_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("short_leases")


def at_step(step: int) -> Any:
    return lambda event: event.kind == "step" and event.attributes["step"] >= step


async def begin(cluster: Cluster, model: Path, **sections: dict[str, Any]) -> ScriptedGenerator:
    """Starts run "lasting" with one worker of each kind, and returns the generator."""
    generator = ScriptedGenerator(cluster.plane, delay_s=0.02)
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, **sections), run_id="lasting")
    return generator


async def add_learner(cluster: Cluster, worker_id: str, **settings: Any) -> None:
    """Adds a learner process that finds the checkpoints of the one before it."""
    batches, cluster.learner = cluster.learner.batches, ScriptedLearner(cluster.plane, **settings)
    cluster.learner.batches = batches
    await cluster.add(cluster.learner, worker_id)


async def replace_learner(cluster: Cluster) -> None:
    await cluster.kill("learner-0")
    await cluster.until("restarting")
    await add_learner(cluster, "learner-1")


async def test_a_run_goes_on_from_its_last_checkpoint_when_its_learner_is_killed(cluster: Cluster, model: Path) -> None:
    generator = await begin(cluster, model, run={"num_steps": 8}, checkpoint={"every_steps": 2})
    await cluster.until("checkpoint")
    await replace_learner(cluster)
    _, events = await cluster.finish(8, attempt=1)
    await cluster.check_every_group_was_used_once(8)
    (restored,) = of_kind(events, "restored")
    assert restored.attributes["policy_version"] >= 2, restored
    joined = [event.attributes["worker_id"] for event in events if event.kind == "worker_joined"]
    assert sorted(joined) == ["generator-0", "learner-0", "learner-1", "reward-0"], "only the learner was configured"
    assert generator.calls.count("LeaveWeightGroup") == 1, "it stayed in the group of a learner that is gone"


async def test_a_restart_does_not_wait_for_a_generator_that_loads_while_another_is_there(
    cluster: Cluster, model: Path
) -> None:
    class Loading(ScriptedGenerator):
        async def Configure(self, request: Any, context: Any) -> generator_pb2.GeneratorServiceConfigureResponse:
            self.status.state = worker_pb2.WORKER_STATE_LOADING
            return generator_pb2.GeneratorServiceConfigureResponse(status=self.status)

    await begin(cluster, model, run={"num_steps": 6}, checkpoint={"every_steps": 2})
    await cluster.until(at_step(2))
    loading = Loading(cluster.plane)
    await cluster.add(loading, "generator-1")
    await eventually(lambda: loading.status.state == worker_pb2.WORKER_STATE_LOADING, "the other generator loads")
    await replace_learner(cluster)
    await cluster.finish(6, attempt=1)


async def test_a_run_without_a_checkpoint_begins_again_when_its_learner_is_killed(
    cluster: Cluster, model: Path
) -> None:
    await begin(cluster, model, run={"num_steps": 4})
    await cluster.until(at_step(1))
    # The other learner is there, and loaded, before the first is lost.
    await add_learner(cluster, "learner-1")
    await cluster.kill("learner-0")
    _, events = await cluster.finish(4, attempt=1)
    assert any("attempt 1 begins at step 0" in event.message for event in events), kinds(events)
    await cluster.check_every_group_was_used_once(4)


async def test_a_connection_that_breaks_costs_nothing_while_the_learner_serves(cluster: Cluster, model: Path) -> None:
    class Breaking(ScriptedLearner):
        breaks = 2

        async def TrainStep(self, request_iterator: Any, context: Any) -> Any:
            response = await super().TrainStep(request_iterator, context)
            if self.breaks:
                self.breaks -= 1
                await context.abort(14, "the connection broke")
            return response

    cluster.learner = Breaking(cluster.plane)
    await begin(cluster, model, run={"num_steps": 2})
    _, events = await cluster.finish(2, attempt=0)
    assert "restarting" not in kinds(events), kinds(events)


async def test_a_learner_that_hangs_in_a_step_is_lost_at_its_deadline_and_the_run_goes_on(
    cluster: Cluster, model: Path
) -> None:
    cluster.learner.step_s = 3600
    await begin(cluster, model, run={"num_steps": 3}, coordinator={"train_step_timeout_s": 2.0})
    restarting = (await cluster.until("restarting"))[-1]
    assert "TrainStep" in restarting.message and "2 s" in restarting.message, restarting
    await cluster.kill("learner-0")  # As its watchdog does, whose threads run while torch hangs.
    await add_learner(cluster, "learner-1")
    await cluster.finish(3, attempt=1)
    await cluster.check_every_group_was_used_once(3)


async def test_a_run_fails_with_every_reason_when_its_restarts_are_spent(cluster: Cluster, model: Path) -> None:
    cluster.learner.step_s = 3600
    await begin(cluster, model, coordinator={"max_restarts": 1})
    for number in (1, 2):
        await cluster.learner.stepping.wait()
        cluster.learner.stepping.clear()
        await cluster.kill(f"learner-{number - 1}")
        cluster.registry.report_lost(f"learner-{number - 1}", f"death {number}")
        if number == 1:
            await add_learner(cluster, "learner-1", step_s=3600)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED and run.attempt == 1, run
    for part in (
        "the learner is lost: death 2; the run was restarted 1 time without a new step",
        "coordinator.max_restarts",
        ": attempt 0 at step 0: the learner is lost: death 1",
    ):
        assert part in run.message, run.message


async def test_a_stop_ends_a_run_that_waits_for_its_learner(cluster: Cluster, model: Path) -> None:
    await begin(cluster, model, run={"num_steps": 40}, checkpoint={"every_steps": 2})
    await cluster.until(at_step(3))
    await cluster.kill("learner-0")
    await cluster.until("restarting")
    await cluster.stop()
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED and run.last_checkpoint_id, run


async def test_a_run_that_is_paused_stays_paused_over_the_loss_of_its_learner(cluster: Cluster, model: Path) -> None:
    await begin(cluster, model, run={"num_steps": 6})
    await cluster.until(at_step(2))
    await cluster.pause()
    await replace_learner(cluster)
    await cluster.until("publish", attempt=1)
    messages = list[str]()

    def waits_no_longer(event: pb.RunEvent) -> bool:
        messages.extend([event.message] if event.kind == "state" else [])
        return messages[-2:] == ["paused; waiting for workers and their models", "paused"]

    await cluster.until(waits_no_longer)
    assert (await cluster.run()).state == pb.RUN_STATE_PAUSED
    await cluster.resume()
    await cluster.finish(6)


class LoadingLearner(ScriptedLearner):
    """Loads for ever, or reports in the middle of it that it has failed."""

    state = worker_pb2.WORKER_STATE_LOADING
    asked = 0

    async def Configure(self, request: Any, context: Any) -> Any:
        return learner_pb2.LearnerServiceConfigureResponse(status=self._status())

    async def GetStatus(self, request: Any, context: Any) -> Any:
        self.asked += self.state == worker_pb2.WORKER_STATE_FAILED
        return learner_pb2.LearnerServiceGetStatusResponse(status=self._status())

    def _status(self) -> worker_pb2.WorkerStatus:
        return worker_pb2.WorkerStatus(state=self.state, message="rank 1 ended")


@pytest.mark.parametrize("reports_it", [False, True])
async def test_a_learner_that_dies_while_it_loads_is_waited_for(
    cluster: Cluster, model: Path, reports_it: bool
) -> None:
    good, loading = cluster.learner, LoadingLearner(cluster.plane)
    cluster.learner = loading
    await begin(cluster, model, run={"num_steps": 2})
    await cluster.until("worker_joined")
    if reports_it:  # As rank 0 does, which then ends.
        loading.state = worker_pb2.WORKER_STATE_FAILED
        await eventually(lambda: loading.asked, "the coordinator learns of the failure")
    await cluster.kill("learner-0")
    lost = (await cluster.until("worker_lost"))[-1]
    assert ("rank 1 ended" in lost.message) == reports_it, lost.message
    cluster.learner = good
    await cluster.add(good, "learner-1")
    await cluster.finish(attempt=0)
